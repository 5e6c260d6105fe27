"""Whatever is offered as a checkpoint, a model or weights: nothing in it is executed."""

import io
import os
import pickle  # noqa: TID251  (only to forge what must be refused)
import shutil
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

import peerdg
from peerdg.cli.main import run
from peerdg.data.cache import cached_domain
from peerdg.errors import DamagedError
from peerdg.models.backbones import build_classifier
from peerdg.models.stored import load_stored, save_model
from peerdg.models.weights import load_weights
from peerdg.run.checkpoint import checkpoints, load_checkpoint
from tests.conftest import tiny_classifier, tiny_domain, tiny_splits
from tests.reliability.tiny_run import OPTIONS


class Calls:
    """Calls `function(*arguments)` when it is unpickled."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.function, self.arguments


def payloads(canary: Path) -> dict[str, object]:
    """Objects that make the file `canary` when they are unpickled, each in another way."""
    touch = f"open({str(canary)!r}, 'w').close()"
    return {
        "mknod": Calls(os.mknod, str(canary)),
        "eval": Calls(eval, touch),
        "exec": Calls(exec, touch),
        "system": Calls(os.system, f"touch {canary}"),
        "mkdir": Calls(os.mkdir, str(canary)),
        "path": Calls(Path.touch, canary),
        "in a dict": {"state_dict": {"a": Calls(os.mknod, str(canary))}},
        "beside tensors": {"a": torch.zeros(2), "b": Calls(os.mknod, str(canary))},
    }


NAMES = tuple(payloads(Path("x")))


def as_pickle(payload: object, protocol: int = 4) -> bytes:
    return pickle.dumps(payload, protocol=protocol)


def as_torch(payload: object, new: bool = True) -> bytes:
    buffer = io.BytesIO()
    torch.save(payload, buffer, _use_new_zipfile_serialization=new)
    return buffer.getvalue()


FORMS = (as_pickle, partial(as_pickle, protocol=0), as_torch, partial(as_torch, new=False))


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


@pytest.fixture(autouse=True)
def unsafe_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch torch's own protection off, as a careless tutorial would have it."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    model = tiny_classifier(batch_norm=True, dropout=0.2)
    peerdg.fit(tiny_splits(), out=out, model=model, **OPTIONS)
    return out


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored") / "model"
    model = build_classifier("digits-cnn", classes=tuple("0123456789"))
    save_model(folder, model, backbone="digits-cnn", image_size=32)
    return folder


def test_the_payloads_would_work(canary: Path):
    for name in NAMES:
        data = as_pickle(payloads(canary)[name])
        pickle.loads(data)
        assert canary.exists(), name
        shutil.rmtree(canary) if canary.is_dir() else canary.unlink()


@pytest.mark.parametrize("name", NAMES)
def test_as_weights_it_is_refused(
    tmp_path: Path, canary: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    for suffix in ("pth", "safetensors"):
        path = tmp_path / f"weights.{suffix}"
        for form in FORMS:
            path.write_bytes(form(payloads(canary)[name]))
            with pytest.raises(DamagedError) as caught:
                load_weights(path)
            assert caught.value.exit_code == 7
            assert not canary.exists(), form
        monkeypatch.delenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", raising=False)


def test_as_any_file_of_a_checkpoint_it_is_refused(tmp_path: Path, canary: Path, finished: Path):
    for name in ("tensors.safetensors", "state.json", "MANIFEST.json"):
        folder = Path(shutil.copytree(finished / "checkpoint", tmp_path / name))
        for path in checkpoints(folder):
            (path / name).write_bytes(as_torch(payloads(canary)["mknod"]))
            with pytest.raises(DamagedError):
                load_checkpoint(path)
    assert not canary.exists()


def test_as_a_models_files_it_is_refused(tmp_path: Path, canary: Path, stored: Path):
    for name in ("model.safetensors", "model.json"):
        folder = Path(shutil.copytree(stored, tmp_path / name))
        (folder / name).write_bytes(as_torch(payloads(canary)["mknod"]))
        with pytest.raises(DamagedError):
            load_stored(folder)
    assert not canary.exists()


def test_as_a_cache_entry_it_is_made_again(
    tmp_path: Path, canary: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PEERDG_CACHE", str(tmp_path / "cache"))
    domain = cached_domain("a", [], tiny_domain)
    for entry in (tmp_path / "cache").iterdir():
        entry.write_bytes(as_pickle(payloads(canary)["mknod"]))
    assert cached_domain("a", [], tiny_domain).fingerprint == domain.fingerprint
    assert not canary.exists()


def test_the_command_line_ends_with_7(tmp_path: Path, canary: Path, stored: Path):
    hostile = tmp_path / "hostile.pth"
    hostile.write_bytes(as_torch(payloads(canary)["mknod"]))
    arguments = ["train", "digits-mini", "--weights", str(hostile), "--out", str(tmp_path / "run")]
    assert run([*arguments, "--quiet"], debug=False) == 7
    shutil.copytree(stored, tmp_path / "model")
    (tmp_path / "model/model.safetensors").write_bytes(hostile.read_bytes())
    assert run(["evaluate", str(tmp_path / "model"), "digits-mini"], debug=False) == 7
    assert not canary.exists()


def test_an_archive_that_only_looks_like_torchs_is_refused(tmp_path: Path, canary: Path):
    path = tmp_path / "weights.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", as_pickle(payloads(canary)["system"]))
        archive.writestr("archive/version", "3")
        archive.writestr("../outside", "x")
    with pytest.raises(DamagedError):
        load_weights(path)
    assert not canary.exists()
    assert not (tmp_path.parent / "outside").exists()


def test_only_a_table_of_tensors_is_taken(tmp_path: Path):
    for payload in ({"a": torch.ones(2)}, {"state_dict": {"a": torch.ones(2)}}):
        torch.save(payload, tmp_path / "weights.pth")
        assert load_weights(tmp_path / "weights.pth")["a"].tolist() == [1, 1]
    for content in ([torch.ones(2)], {"a": 1}, torch.ones(2), {"a": None}):
        torch.save(content, tmp_path / "weights.pth")
        with pytest.raises(DamagedError):
            load_weights(tmp_path / "weights.pth")
