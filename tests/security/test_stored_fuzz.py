"""Whatever stands in the JSON and TOML files of a run or model folder, no command breaks on it.

Each example changes one file in one place, with new checksums where there are any, so that it is
the content that must be refused. The commands may succeed or end with 2, 5 or 7, nothing else, and
never with a traceback.
"""

import copy
import json
import os
import shutil
import tomllib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from peerdg.cli.main import run
from peerdg.errors import PeerdgWarning
from peerdg.files import sha256
from peerdg.models.description import checksum
from tests.reliability.photo_run import interrupt, photo_run
from tests.reliability.test_damage import forge_manifest

ACCEPTED = {0, 2, 5, 7}
VALUES: tuple[Any, ...] = (
    None, True, 0, 1, -1, 2**31, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "32",
    "x" * 500, "a\0b", "../../etc", "\x1b[31m", [], [1], [[]], ["a", "a"], {}, {"a": 1}, {"": None},
)  # fmt: skip


def deep() -> Any:
    value: Any = 1
    for _ in range(300):
        value = [value]
    return value


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run that is done, and the same one as it was before its end; with all files there are."""
    folder = tmp_path_factory.mktemp("fuzz")
    done = photo_run(folder, "--profile", "--crafted", "off")
    shutil.rmtree(done / "snapshots")
    half = Path(shutil.copytree(done, folder / "half"))
    interrupt(half)
    (half / "failure.json").write_text('{"error": "x", "step": 1}')
    report = folder / "report"
    assert run(["runs", str(done), "--report", str(report)], debug=False) == 0
    second = Path(shutil.copytree(done / "model", folder / "second"))
    change_weights(second)
    joined = folder / "joined"
    combine = ["combine", str(done), str(second), "--rule", "ensemble", "-o", str(joined)]
    assert run(combine, debug=False) == 0
    return {"done": done, "half": half, "report": report, "joined": joined}


def change_weights(model: Path) -> None:
    """Another model of the same kind, with right checksums."""
    weights = load_file(model / "model.safetensors")
    weights["head.weight"] *= 2
    save_file(weights, model / "model.safetensors")
    about = json.loads((model / "model.json").read_text())
    about["weights_sha256"] = sha256(model / "model.safetensors")
    (model / "model.json").write_text(json.dumps({**about, "sha256": checksum(about)}))


def files_of(folder: Path) -> list[Path]:
    kinds = (".json", ".toml", ".jsonl")
    found = [path for path in folder.rglob("*") if path.suffix in kinds]
    return sorted(path.relative_to(folder) for path in found)


# One file of each kind; of the two checkpoints the newest is the one that is read.
DONE_FILES = (
    "config.toml", "manifest.json", "files.json", "images.json", "metrics.jsonl", "events.jsonl",
    "done.json", "profile.json", "model/model.json",
)  # fmt: skip
HALF_FILES = (
    "config.toml", "manifest.json", "files.json", "metrics.jsonl", "events.jsonl", "failure.json",
    "checkpoint/*/state.json", "checkpoint/*/MANIFEST.json",
)  # fmt: skip


def test_every_stored_file_is_tried(runs: dict[str, Path]):
    """A file that is added to a run folder must be added to the lists above."""
    stored = {
        str(Path("checkpoint/*", *path.parts[2:])) if path.parts[0] == "checkpoint" else str(path)
        for name in ("done", "half")
        for path in files_of(runs[name])
    }
    assert stored == {*DONE_FILES, *HALF_FILES}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in nested tables and lists, the whole first; of long lists the first two."""
    yield path
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value[:2] if isinstance(value, list) else [])
    )
    for key, item in inside:
        yield from places(item, (*path, key))


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """A copy of `value` with `new` at `place`; `...` removes what is there."""
    if not place:
        return None if new is ... else new
    result = copy.deepcopy(value)
    inner = result
    for key in place[:-1]:
        inner = inner[key]
    if new is ...:
        del inner[place[-1]]
    else:
        inner[place[-1]] = new
    return result


def mutated(content: bytes, suffix: str, draw: Callable[..., Any]) -> bytes:
    """The file with one thing changed: a value, a line, or its bytes."""
    kind = draw(st.sampled_from(["value"] * 8 + ["cut", "bytes", "empty", "deep"]))
    if kind == "cut":
        return content[: draw(st.integers(0, len(content)))]
    if kind == "bytes":
        at = draw(st.integers(0, len(content)))
        return content[:at] + draw(st.binary(min_size=1, max_size=4)) + content[at + 2 :]
    if kind == "empty":
        return b""
    if suffix == ".jsonl":
        lines = content.splitlines()
        number = draw(st.integers(0, len(lines) - 1))
        lines[number] = mutated(lines[number], ".json", draw).replace(b"\n", b" ")
        return b"\n".join(lines) + b"\n"
    value = tomllib.loads(content.decode()) if suffix == ".toml" else json.loads(content)
    place = draw(st.sampled_from(list(places(value))))
    new = deep() if kind == "deep" else draw(st.sampled_from((..., *VALUES)))
    return written(changed(value, place, new), suffix, content)


def written(value: Any, suffix: str, content: bytes) -> bytes:
    if suffix != ".toml":
        return json.dumps(value).encode()
    try:
        return tomli_w.dumps(value).encode()
    except RecursionError:  # the writer's own
        return content + b"\ndeep = " + b"[" * 3000 + b"]" * 3000
    except (TypeError, ValueError, AttributeError):  # no such value in TOML: a wrong line instead
        return content + b"\n[["


def renew_checksums(folder: Path, path: Path) -> None:
    """What one would do who wants the change to be believed."""
    try:
        if path.name == "state.json":
            forge_manifest(path.parent)
        elif path.name == "model.json":
            values = json.loads(path.read_bytes())
            path.write_text(json.dumps({**values, "sha256": checksum(values)}))
    except (ValueError, TypeError):
        return  # not JSON any more


def commands(out: Path) -> dict[str, list[str]]:
    photos = out.parent / "photos"
    image = str(next(photos.rglob("*.png")))
    away = ["-o", str(out.parent / "away")]
    both = [str(out), str(out.parent / "second")]
    return {
        "runs": ["runs", str(out), "--compare"],
        "list": ["runs", str(out)],
        "resume": ["resume", str(out), "--quiet"],
        "evaluate": ["evaluate", str(out)],
        "evaluate a folder": ["evaluate", str(out), str(photos)],
        "predict": ["predict", str(out), image, "--quiet"],
        "export": ["export", str(out), "--format", "safetensors", *away],
        "combine": ["combine", *both, *away],
        "choose": ["combine", *both, "--rule", "greedy", *away],
    }


def try_commands(
    out: Path, names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> dict[str, int]:
    codes = {}
    for name in names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PeerdgWarning)
            codes[name] = run(commands(out)[name], debug=False)
        said = capsys.readouterr().err
        assert codes[name] in ACCEPTED, (name, codes[name], said)
        assert "Traceback" not in said
        shutil.rmtree(out.parent / "away", ignore_errors=True)
    return codes


BOUNDED = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
MORE = settings(BOUNDED, max_examples=100)


@pytest.mark.parametrize("name", DONE_FILES)
@BOUNDED
@given(data=st.data())
def test_a_changed_file_of_a_finished_run_breaks_no_command(
    runs: dict[str, Path], name: str, data: st.DataObject, capsys: pytest.CaptureFixture[str]
):
    uses_model = ("predict", "evaluate a folder", "export") if "model" in name else ()
    if name in ("config.toml", "manifest.json", "model/model.json"):
        uses_model = (*uses_model, "combine", "choose")
    plain = ("list", "runs", "evaluate") if name == "config.toml" else ("list", "runs")
    try_change(runs["done"], name, data, (*uses_model, *plain, "resume"), capsys)


@settings(BOUNDED, max_examples=15)
@given(data=st.data())
def test_a_changed_description_of_an_ensemble_breaks_no_command(
    runs: dict[str, Path], data: st.DataObject, capsys: pytest.CaptureFixture[str]
):
    names = ("predict", "evaluate a folder", "export", "combine")
    try_change(runs["joined"], "model.json", data, names, capsys)


@pytest.mark.parametrize("name", HALF_FILES)
@BOUNDED
@given(data=st.data())
def test_a_changed_file_of_a_half_done_run_breaks_no_command(
    runs: dict[str, Path], name: str, data: st.DataObject, capsys: pytest.CaptureFixture[str]
):
    try_change(runs["half"], name, data, ("list", "resume"), capsys)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["done", "half"])
@MORE
@given(data=st.data())
def test_more_changes_of_any_file_break_no_command(
    runs: dict[str, Path], state: str, data: st.DataObject, capsys: pytest.CaptureFixture[str]
):
    name = data.draw(st.sampled_from(DONE_FILES if state == "done" else HALF_FILES))
    try_change(runs[state], name, data, ("list", "runs", "resume"), capsys)


def copied(file: str, to: str) -> object:
    """Weights are replaced, never changed in place: a second name for them is enough."""
    return os.link(file, to) if file.endswith(".safetensors") else shutil.copy(file, to)


def try_change(
    folder: Path,
    name: str,
    data: st.DataObject,
    names: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = folder.parent / "tried"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(folder, out, copy_function=copied)
    path = sorted(out.glob(name))[-1]
    path.write_bytes(mutated(path.read_bytes(), path.suffix, data.draw))
    renew_checksums(out, path)
    try_commands(out, names, capsys)


@BOUNDED
@given(data=st.data())
def test_changed_records_of_a_report_break_no_command(
    runs: dict[str, Path], data: st.DataObject, capsys: pytest.CaptureFixture[str]
):
    content = (runs["report"] / "runs.json").read_bytes()
    path = runs["report"] / "tried.json"
    path.write_bytes(mutated(content, ".json", data.draw))
    for more in ([], ["--compare"]):
        assert run(["runs", str(path), *more], debug=False) in ACCEPTED
        assert "Traceback" not in capsys.readouterr().err
