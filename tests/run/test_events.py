import json
import random
import shutil
from pathlib import Path

import pytest

import peerdg
from peerdg.errors import DamagedError, PeerdgWarning
from peerdg.run.records import JsonLines
from tests.conftest import tiny_classifier, tiny_splits
from tests.reliability.tiny_run import OPTIONS

RECORDS = [
    {"kind": "epoch", "epoch": i, "domain": "rivière 🦆\n", "loss": i / 7} for i in range(12)
]


@pytest.fixture
def lines(tmp_path: Path) -> JsonLines:
    lines = JsonLines(tmp_path / "metrics.jsonl")
    for record in RECORDS:
        lines.append(record)
    return lines


def ends_of_lines(content: bytes) -> list[int]:
    return [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]


def test_what_was_appended_is_read(lines: JsonLines):
    assert lines.read() == RECORDS
    assert lines.size() == lines.path.stat().st_size


def test_a_file_torn_at_any_point_gives_the_whole_lines_before_it(lines: JsonLines):
    content = lines.path.read_bytes()
    ends = ends_of_lines(content)
    points = random.Random(0).sample(range(len(content)), 100)
    for point in points:
        whole = sum(end <= point for end in ends)
        lines.path.write_bytes(content[:point])
        assert lines.read() == RECORDS[:whole]
        lines.cut()
        assert lines.path.read_bytes() == content[: ([0, *ends])[whole]]
        lines.append({"next": point})
        assert lines.read() == [*RECORDS[:whole], {"next": point}]


BAD = [b"\xff\xfe\x00", b'{"a": 1}{"b": 2}', b'{"kind": "ep{"kind": "epoch"}', b"[1]", b"", b"\x00"]


@pytest.mark.parametrize("position", [0, 5, 12])
def test_a_bad_line_is_named_and_cut(lines: JsonLines, position: int):
    good = lines.path.read_bytes().splitlines(keepends=True)
    for bad in BAD:
        lines.path.write_bytes(b"".join([*good[:position], bad + b"\n", *good[position:]]))
        with pytest.raises(DamagedError, match=f"line {position + 1} is invalid"):
            lines.read()
        lines.cut()
        assert lines.read() == RECORDS[:position]
        assert lines.path.read_bytes() == b"".join(good[:position])


def test_a_cut_at_a_size_drops_what_is_newer(lines: JsonLines):
    content = lines.path.read_bytes()
    end = ends_of_lines(content)[4]
    lines.cut(end)
    assert lines.path.read_bytes() == content[:end]


def test_a_file_that_is_not_there_is_empty(tmp_path: Path):
    lines = JsonLines(tmp_path / "none.jsonl")
    lines.cut()
    assert lines.read() == []
    assert lines.size() == 0


def fit(out: Path) -> None:
    model = tiny_classifier(batch_norm=True, dropout=0.2)
    peerdg.fit(tiny_splits(), out=out, model=model, existing="resume", **OPTIONS)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    fit(out)
    return out


@pytest.fixture
def unfinished(finished: Path, tmp_path: Path) -> Path:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (out / "done.json").unlink()
    return out


def test_lines_newer_than_the_checkpoint_are_cut_on_resume(finished: Path, unfinished: Path):
    for tail in (b'{"kind": "epo', b'{"kind": "epoch", "epoch": 99}\n', b"\xff\n\xff"):
        with (unfinished / "metrics.jsonl").open("ab") as file:
            file.write(tail)
        fit(unfinished)
        (unfinished / "done.json").unlink()
        assert same(finished, unfinished, "metrics.jsonl")


def test_a_torn_event_is_cut_on_resume(finished: Path, unfinished: Path):
    with (unfinished / "events.jsonl").open("ab") as file:
        file.write(b'{"event": "epo')
    fit(unfinished)
    events = [json.loads(line) for line in (unfinished / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events][-3:] == ["done", "resume", "done"]


def test_records_lost_from_the_middle_are_reported_and_the_weights_are_the_same(
    finished: Path, unfinished: Path
):
    content = (unfinished / "metrics.jsonl").read_bytes()
    (unfinished / "metrics.jsonl").write_bytes(content[: len(content) // 2])
    with pytest.warns(PeerdgWarning, match="are lost"):
        fit(unfinished)
    assert same(finished, unfinished, "model/model.safetensors")
    assert '"damaged"' in (unfinished / "events.jsonl").read_text()


def same(a: Path, b: Path, name: str) -> bool:
    return (a / name).read_bytes() == (b / name).read_bytes()
