"""Stored files with right checksums and wrong content are refused with a message."""

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from peerdg.cli.main import run
from peerdg.data.domain import Domain
from peerdg.errors import ConfigError, DamagedError, NumericalError, PeerdgWarning
from peerdg.files import sha256
from peerdg.model import load_model
from peerdg.models.backbones import build_classifier
from peerdg.models.stored import checksum, load_stored, save_model
from peerdg.models.weights import initialize, load_weights
from tests.cli.stored_models import save_photos, save_small_model
from tests.conftest import import_timm, tiny_classifier
from tests.reliability.photo_run import interrupt, photo_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photo_run(tmp_path_factory.mktemp("stored"))


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "runs" / "one"))


def edit(folder: Path, **values: Any) -> None:
    """Change `model.json` as one would who knows how its checksum is made."""
    path = folder / "model.json"
    description = {**json.loads(path.read_text()), **values}
    description = {key: value for key, value in description.items() if value is not ...}
    path.write_text(json.dumps({**description, "sha256": checksum(description)}))


def test_large_stored_images_are_predicted_a_few_at_a_time(tmp_path: Path):
    """The network sees 32 pixels: 256 at once, if they were not stored with 2,048."""
    folder = save_small_model(tmp_path / "model", stored_size=2048)
    photos = sorted(save_photos(tmp_path / "photos", per_class=2).rglob("*.png"))
    model = load_model(folder)
    passes: list[int] = []
    model.classifier.register_forward_pre_hook(lambda _, inputs: passes.append(len(inputs[0])))
    found = list(model.predict_files(photos))
    assert passes == [4, 2]
    passes.clear()
    one_by_one = [model.predict(path) for path in photos]
    assert [(item.label, item.probability) for item in found] == [
        (item.label, pytest.approx(item.probability, abs=1e-6)) for item in one_by_one
    ]
    model.predict(photos)
    assert passes == [1] * 6 + [4, 2]


def test_too_little_memory_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    folder = save_small_model(tmp_path / "model")
    photos = save_photos(tmp_path / "photos")
    monkeypatch.setattr("peerdg.model.load_model", lambda *_, **__: torch.empty(2**50))
    assert run(["predict", str(folder), str(photos)], debug=False) == 1
    said = capsys.readouterr().err
    assert "Out of memory" in said
    assert "Traceback" not in said
    assert "bug" not in said


@pytest.mark.parametrize("backbone", ["digits-cnn", "timm:resnet10t"])
def test_usual_networks_load_bit_for_bit(tmp_path: Path, backbone: str):
    if backbone.startswith("timm:"):
        import_timm()
    model = build_classifier(backbone, classes=("cat", "dog"))
    save_model(tmp_path / "model", model, backbone=backbone, image_size=64)
    loaded, _ = load_stored(tmp_path / "model")
    saved = model.state_dict()
    assert loaded.state_dict().keys() == saved.keys()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, saved[name]), name
    for name, buffer in loaded.named_buffers():
        assert buffer.device.type == "cpu", name


def replace_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change the weights of a model folder together with their checksums."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    edit(folder, weights_sha256=sha256(folder / "model.safetensors"))


def test_weights_that_are_not_finite_are_never_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = save_small_model(tmp_path / "model")
    photos = save_photos(tmp_path / "photos")
    replace_weights(folder, lambda tensors: tensors["head.bias"][1:2].fill_(torch.nan))
    for command in ("predict", "evaluate"):
        assert run([command, str(folder), str(photos)], debug=False) == 6
        shown = capsys.readouterr()
        assert "head.bias" in shown.err.replace("\n", "")
        assert str(folder) in shown.err.replace("\n", "")
        assert "nan" not in shown.out


def test_an_output_that_is_not_finite_is_no_prediction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Each weight is finite, but what the network computes is not."""
    folder = save_small_model(tmp_path / "model")
    photos = save_photos(tmp_path / "photos")
    replace_weights(folder, lambda tensors: tensors["head.weight"].fill_(3e38))
    for command in ("predict", "evaluate"):
        assert run([command, str(folder), str(photos)], debug=False) == 6
        shown = capsys.readouterr()
        assert "NaN or infinite" in shown.err
        assert "nan" not in shown.out
    model = load_model(folder)
    white = torch.full((3, 3, 40, 40), 255, dtype=torch.uint8)
    domain = Domain("white", model.classes, white, torch.arange(3))
    with pytest.raises(NumericalError):
        model.evaluate(domain)


def odd_tensors() -> dict[str, Callable[[], torch.Tensor]]:
    wide = torch.zeros(1)
    return {
        "sparse": lambda: torch.eye(4).to_sparse(),
        "meta": lambda: torch.empty(4, 4, device="meta"),
        "float8": lambda: torch.zeros(4, 4).to(torch.float8_e4m3fn),
        "complex": lambda: torch.zeros(4, 4, dtype=torch.complex64),
        "stride 0": lambda: wide.expand(50_000, 50_000),  # 10 GB if it were written out
        "stride 0 in part": lambda: torch.zeros(1, 8).expand(10**9, 8),
    }


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("old_format", [False, True], ids=["zip", "before 1.6"])
def test_weights_that_are_no_plain_tensors_are_refused(tmp_path: Path, old_format: bool):
    path = tmp_path / "weights.pth"
    for name, make in odd_tensors().items():
        content = {"encoder.fc.weight": make(), "fc.bias": torch.zeros(4)}
        torch.save(content, path, _use_new_zipfile_serialization=not old_format)
        with pytest.raises((ConfigError, DamagedError)):  # a shape, or a kind, that does not fit
            initialize(tiny_classifier(), "digits-cnn-half", str(path))
            pytest.fail(name)


def test_packed_weights_are_not_unpacked(tmp_path: Path):
    """torch never compresses: a file that is would grow a thousandfold in memory."""
    plain, packed = tmp_path / "plain.pth", tmp_path / "packed.pth"
    torch.save({"a": torch.zeros(5_000_000)}, plain)
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    assert packed.stat().st_size < plain.stat().st_size / 500
    with pytest.raises(DamagedError):
        load_weights(packed)


def test_a_size_that_is_only_claimed_is_refused(tmp_path: Path):
    path = tmp_path / "weights.pth"
    torch.save({"a": torch.zeros(1000)}, path, _use_new_zipfile_serialization=False)
    claimed = path.read_bytes().replace(b"M\xe8\x03", b"J" + (2 * 10**9).to_bytes(4, "little"))
    path.write_bytes(claimed)
    with pytest.raises(DamagedError):
        load_weights(path)


@pytest.mark.parametrize("old_format", [False, True], ids=["zip", "before 1.6"])
def test_usual_weights_are_as_they_were_saved(tmp_path: Path, old_format: bool):
    path = tmp_path / "weights.pth"
    saved = {"a": torch.arange(6.0).view(2, 3).T, "b": torch.nn.Parameter(torch.ones(2).half())}
    torch.save(saved, path, _use_new_zipfile_serialization=not old_format)
    loaded = load_weights(path)
    assert all(torch.equal(loaded[name], value) for name, value in saved.items())


CONFIGS = {
    "digits": "seed = " + "9" * 5000,
    "nested": "seed = " + "[" * 9999 + "]" * 9999,
    "NUL": 'root = "a\\u0000b"',
    "section": "train = 5",
    "infinite": "[train]\nlr = inf",
    "not text": "\udcff",
}


def test_an_absurd_config_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "config.toml"
    for name, text in CONFIGS.items():
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        assert run(["config", "digits-mini", "--config", str(path)], debug=False) == 2, name
        shown = capsys.readouterr().err
        assert "Traceback" not in shown, name
        assert len(shown) < 2000, name


BAD_LINES = {
    "empty": "{}",
    "list": "[]",
    "torn and written over": '{"kind": "ep{"kind": "epoch"}',
}


@pytest.mark.parametrize(
    ("file", "content"),
    [("config.toml", "method = "), ("config.toml", "method = 5"),
     ("events.jsonl", "{}\n"), *(("metrics.jsonl", f"{line}\n") for line in BAD_LINES.values())],
)  # fmt: skip
def test_one_bad_run_does_not_hide_the_others(
    out: Path, file: str, content: str, capsys: pytest.CaptureFixture[str]
):
    bad = Path(shutil.copytree(out, out.parent / "two"))
    (bad / file).write_text(content)
    with pytest.warns(PeerdgWarning, match="two is skipped: "):
        assert run(["runs", str(out.parent)], debug=False) == 0
    listed = capsys.readouterr().out
    assert "one" in listed
    assert "two" not in listed


@pytest.mark.parametrize(("name", "line"), list(zip(BAD_LINES, (3, 40, -1), strict=True)))
def test_a_bad_record_is_reported_before_training_and_the_run_ends(
    finished: Path, out: Path, name: str, line: int
):
    """The last evaluation is repeated, whichever of its records was lost."""
    interrupt(out)
    lines = (out / "metrics.jsonl").read_text().splitlines()
    lines[line] = BAD_LINES[name]
    (out / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.warns(PeerdgWarning, match="later records are lost"):
        assert run(["resume", str(out), "--quiet"], debug=False) == 0
    for file in ("done.json", "model/model.safetensors", "model/model.json"):
        assert (out / file).read_bytes() == (finished / file).read_bytes(), file
    assert run(["runs", str(out)], debug=False) == 0
