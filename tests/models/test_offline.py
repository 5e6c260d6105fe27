"""Without internet access, a missing file is reported at once with its path."""

import socket
from pathlib import Path

import pytest

from peerdg.cli.main import run
from peerdg.errors import ConfigError
from peerdg.models.weights import initialize
from tests.conftest import import_timm
from tests.models.files import build


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Disable name resolution and use empty caches."""

    def refused(*_, **__):
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return tmp_path / "torch" / "hub" / "checkpoints"


def test_missing_weights_are_refused_with_the_expected_path(offline):
    model = build("resnet18", classes=2)
    with pytest.raises(ConfigError) as error:
        initialize(model, "resnet18", "imagenet")
    assert "https://download.pytorch.org/models/resnet18-f37072fd.pth" in error.value.message
    assert str(offline / "resnet18-f37072fd.pth") in error.value.hint
    assert "--weights FILE" in error.value.hint
    assert error.value.exit_code == 2
    assert not offline.exists() or not list(offline.iterdir())


def test_missing_weights_of_timm_are_refused(monkeypatch):
    import_timm()
    hub = pytest.importorskip("huggingface_hub")

    def fail(*_):
        raise OSError("no network")

    monkeypatch.setattr(hub, "hf_hub_download", fail)
    with pytest.raises(ConfigError, match=r"huggingface[.]co/timm/convnext_atto") as error:
        initialize(build("timm:convnext_atto", classes=2), "timm:convnext_atto", "imagenet")
    assert "--weights FILE" in error.value.hint


def test_a_missing_data_set_is_reported_before_missing_weights(offline, tmp_path, capsys):
    wrong = tmp_path / "photos"
    (wrong / "holiday").mkdir(parents=True)
    command = ["train", "pacs", "--root", str(wrong), "--backbone", "resnet18"]
    out = tmp_path / "run"
    assert run([*command, "--weights", "imagenet", "--out", str(out)], debug=False) == 5
    printed = " ".join(capsys.readouterr().err.split())
    assert "no folder for the pacs domain 'photo'" in printed
    assert "resnet18-f37072fd.pth" not in printed
