import json
import random
import shutil
from pathlib import Path

import pytest
import torch

import peerdg
from peerdg.errors import DamagedError, DataError, PeerdgWarning
from peerdg.model import load_model
from peerdg.models.backbones import build_classifier
from peerdg.models.stored import load_stored, save_model
from peerdg.run.checkpoint import checkpoints, load_checkpoint, load_newest, save_checkpoint
from tests.conftest import tiny_classifier, tiny_splits
from tests.reliability.tiny_run import OPTIONS

FILES = ("tensors.safetensors", "state.json", "MANIFEST.json")
TRIALS = 100


def flip_a_bit(content: bytes, draw: random.Random) -> bytes:
    position = draw.randrange(len(content))
    changed = content[position] ^ (1 << draw.randrange(8))
    return content[:position] + bytes([changed]) + content[position + 1 :]


def truncate(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content))]


def zero_a_block(content: bytes, draw: random.Random) -> bytes:
    begin = draw.randrange(len(content))
    length = draw.randint(1, 512)
    return content[:begin] + bytes(len(content[begin : begin + length])) + content[begin + length :]


DAMAGES = (flip_a_bit, flip_a_bit, truncate, zero_a_block)


def damaged(content: bytes, draw: random.Random) -> bytes:
    """Content that differs, by one of the kinds of damage."""
    while True:
        result = draw.choice(DAMAGES)(content, draw)
        if result != content:
            return result


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two checkpoints of different content and the same names and sizes."""
    for number in (1, 2):
        tensors = {"method.a": torch.arange(300.0) * number, "method.b": torch.zeros(4)}
        save_checkpoint(tmp_path, number, tensors, {"epoch": number, "metrics_bytes": 0})
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_every_damage_to_a_checkpoint_file_is_detected(folder: Path, name: str):
    draw = random.Random(f"damage {name}")
    path = checkpoints(folder)[-1]
    content = (path / name).read_bytes()
    before = load_checkpoint(path)
    for trial in range(TRIALS):
        (path / name).write_bytes(damaged(content, draw))
        try:
            loaded = load_checkpoint(path)
        except DamagedError:
            continue
        # A manifest may be written differently and say the same; then nothing may be different.
        assert name == "MANIFEST.json", f"trial {trial}"
        assert loaded.state == before.state
        assert all(loaded.tensors[k].equal(v) for k, v in before.tensors.items())
        written = json.loads((path / name).read_bytes())
        assert written == json.loads(content), f"trial {trial}"
    (path / name).write_bytes(content)
    load_checkpoint(path)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_other_file_is_detected(folder: Path, name: str):
    old, new = checkpoints(folder)
    shutil.copy(old / name, new / name)
    with pytest.raises(DamagedError):
        load_checkpoint(new)
    (new / name).unlink()
    with pytest.raises(DamagedError):
        load_checkpoint(new)
    (new / name).mkdir()
    with pytest.raises(DamagedError):
        load_checkpoint(new)


def test_the_checkpoint_before_a_damaged_one_is_used(folder: Path):
    (checkpoints(folder)[-1] / "state.json").unlink()
    found, problems = load_newest(folder)
    assert found is not None
    assert found.state["epoch"] == 1
    assert len(problems) == 1


def test_without_a_whole_checkpoint_nothing_is_guessed(folder: Path):
    for path in checkpoints(folder):
        (path / "state.json").write_text("")
    with pytest.raises(DamagedError, match="No checkpoint") as caught:
        load_newest(folder)
    assert caught.value.exit_code == 7
    assert "--overwrite" in (caught.value.hint or "")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    fit(out)
    return out


def fit(out: Path, **options: object) -> None:
    model = tiny_classifier(batch_norm=True, dropout=0.2)
    peerdg.fit(tiny_splits(), out=out, model=model, existing="resume", **{**OPTIONS, **options})


def interrupted(finished: Path, folder: Path) -> Path:
    """A copy of a finished run, as if it had been killed just before its end."""
    out = Path(shutil.copytree(finished, folder / "run"))
    (out / "done.json").unlink()
    return out


def test_a_run_with_a_damaged_newest_checkpoint_warns_and_ends_equal(
    finished: Path, tmp_path: Path
):
    out = interrupted(finished, tmp_path)
    shutil.rmtree(out / "model")
    newest = checkpoints(out / "checkpoint")[-1]
    content = (newest / "tensors.safetensors").read_bytes()
    (newest / "tensors.safetensors").write_bytes(flip_a_bit(content, random.Random(0)))
    with pytest.warns(PeerdgWarning, match="The previous checkpoint is used"):
        fit(out)
    for name in ("model/model.safetensors", "metrics.jsonl", "done.json"):
        assert (out / name).read_bytes() == (finished / name).read_bytes()
    # The damaged one was written again, so that the next resume does not meet it.
    for path in checkpoints(out / "checkpoint"):
        load_checkpoint(path)
    assert '"damaged"' in (out / "events.jsonl").read_text()


def test_a_run_without_a_whole_checkpoint_stops_and_loses_nothing(finished: Path, tmp_path: Path):
    out = interrupted(finished, tmp_path)
    records = (out / "metrics.jsonl").read_bytes()
    for path in checkpoints(out / "checkpoint"):
        (path / "MANIFEST.json").unlink()
    with pytest.raises(DamagedError):
        fit(out)
    assert (out / "metrics.jsonl").read_bytes() == records


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"[]", b"{}", b"[" * 5000])
def test_a_damaged_manifest_stops_the_run(finished: Path, tmp_path: Path, content: bytes):
    out = interrupted(finished, tmp_path)
    (out / "manifest.json").write_bytes(content)
    with pytest.raises(DamagedError, match="manifest"):
        fit(out)


def test_a_run_with_a_checkpoint_and_no_manifest_is_refused(finished: Path, tmp_path: Path):
    out = interrupted(finished, tmp_path)
    (out / "manifest.json").unlink()
    with pytest.raises(DamagedError, match="missing"):
        fit(out)


@pytest.mark.parametrize("name", ["manifest.json", "checkpoint/*/MANIFEST.json"])
def test_another_format_is_refused(finished: Path, tmp_path: Path, name: str):
    out = interrupted(finished, tmp_path)
    for path in out.glob(name):
        path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(DamagedError, match="format 99"):
        fit(out)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored") / "model"
    torch.manual_seed(0)
    model = build_classifier("digits-cnn", classes=tuple("0123456789"))
    save_model(folder, model, backbone="digits-cnn", image_size=32)
    return folder


def test_every_damage_to_a_models_description_is_detected(model_folder: Path, tmp_path: Path):
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    draw = random.Random("model.json")
    content = (folder / "model.json").read_bytes()
    whole = json.loads(content)
    for trial in range(TRIALS):
        (folder / "model.json").write_bytes(damaged(content, draw))
        try:
            _, description = load_stored(folder)
        except DamagedError:
            continue
        assert description == whole, f"trial {trial}"  # only white space differs


def test_damage_to_a_models_weights_is_detected(model_folder: Path, tmp_path: Path):
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    draw = random.Random("model.safetensors")
    content = (folder / "model.safetensors").read_bytes()
    for _ in range(20):
        (folder / "model.safetensors").write_bytes(damaged(content, draw))
        with pytest.raises(DamagedError):
            load_model(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(DamagedError):
        load_model(folder)


def test_a_folder_without_a_model_is_a_data_error(tmp_path: Path):
    with pytest.raises(DataError, match="no model"):
        load_model(tmp_path)
