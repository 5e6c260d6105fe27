"""Methods of the user's own: their flags, what a run keeps of them, and what is refused."""

import hashlib
import itertools
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from peerdg.cli.main import run
from peerdg.methods.registry import method_names
from peerdg.options import read_toml
from peerdg.train import loop
from tests.cli.stored_models import save_photos

PLUGIN = '''
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F

from peerdg.options import option
from peerdg.methods.base import Batch, Method, Terms
from peerdg.methods.base import MethodSettings

Path("MARKER").touch()


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Cross-entropy with smooth labels."""

    smoothing: float = option(0.1, "share of the other classes", at_least=0, at_most=1)
    noise: Literal["none", "some"] = option("some", "noise on the logits")

    @property
    def augments(self) -> bool:
        return False


class Soft(Method):
    """L = CE with smooth labels."""

    def __init__(self, model: Any, settings: Settings) -> None:
        super().__init__()
        self.model, self.settings = model, settings
        self.register_buffer("steps", torch.zeros(()))

    @classmethod
    def build(cls, model: Any, settings: Settings, context: Any) -> Self:
        return cls(model, settings)

    def loss(self, batch: Batch) -> Terms:
        self.steps += 1
        logits = self.model(batch.images)
        if self.settings.noise == "some":
            logits = logits + self.steps / 100 * torch.randn_like(logits)
        smoothing = self.settings.smoothing
        loss = F.cross_entropy(logits, batch.labels, label_smoothing=smoothing)
        return {"loss": loss}

    @property
    def networks(self) -> dict[str, Any]:
        return {"model": self.model}
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def plugin(here: Path) -> Path:
    file = here / "soft_labels.py"
    file.write_text(PLUGIN.replace("MARKER", str(here / "was-executed")))
    return file


def ask(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    capsys.readouterr()
    assert run(arguments, debug=False) == code
    output = capsys.readouterr()
    return " ".join((output.out + output.err).split())


SHORT = [
    "--pretrain.epochs", "0", "--epochs", "1", "--train.batch-size", "2", "--crafted", "off",
    "--backbone", "digits-cnn-half", "--weights", "none", "--transform.size", "32", "--quiet",
]  # fmt: skip


def train(here: Path, capsys: pytest.CaptureFixture[str], *more: str, out: str = "run") -> Path:
    if not (here / "photos").exists():
        save_photos(here / "photos")
    arguments = ["train", "photos", "--plugin", "soft_labels.py", "--out", out, *SHORT, *more]
    ask(arguments, capsys)
    return here / out


def test_its_method_is_trained_with_its_flags_and_recorded(plugin, here, capsys):
    out = train(here, capsys, "--soft-labels.smoothing", "0.3", "--soft-labels.noise=none")
    config = read_toml(out / "config.toml")
    digest = hashlib.sha256(plugin.read_bytes()).hexdigest()
    assert config["method"] == "soft-labels"
    assert config["soft-labels"] == {"smoothing": 0.3, "noise": "none"}
    assert config["plugin"] == f"soft_labels.py sha256:{digest}"
    started = json.loads((out / "manifest.json").read_text())["config"]
    assert started["plugin"] == config["plugin"]
    assert str(here) not in (out / "config.toml").read_text().replace(f'"{here}/photos"', "")


def test_nothing_of_it_stays_behind(plugin, here, capsys):
    known = method_names()
    ask(["methods", "soft-labels", "--plugin", "soft_labels.py"], capsys)
    assert method_names() == known
    assert not any("soft_labels" in name for name in sys.modules)
    assert {path.name for path in here.iterdir()} == {"soft_labels.py", "was-executed"}
    said = ask(["methods", "soft-labels"], capsys, 2)
    assert "Unknown method 'soft-labels'" in said


def test_models_are_used_without_it(plugin, here, capsys, monkeypatch):
    out = train(here, capsys)
    plugin.unlink()
    (here / "was-executed").unlink()
    picture = str(next((here / "photos").rglob("*.png")))
    ask(["evaluate", str(out)], capsys)
    ask(["evaluate", str(out), str(save_photos(here / "others", seed=1))], capsys)
    ask(["predict", str(out), picture], capsys)
    ask(["export", str(out), "--format", "safetensors", "-o", "weights"], capsys)
    assert "soft-labels" in ask(["runs", str(out)], capsys)
    assert not (here / "was-executed").exists()


def test_its_options_are_listed_explained_and_checked(plugin, here, capsys):
    listed = ask(["methods", "--plugin", "soft_labels.py"], capsys)
    assert "Cross-entropy with smooth labels." in listed
    listed = ask(["methods", "soft-labels", "--plugin=soft_labels.py"], capsys)
    assert "--soft-labels.smoothing 0.1 share of the other classes" in listed
    shown = ask(["train", "--plugin", "soft_labels.py", "--help"], capsys)
    assert "--soft-labels.smoothing" in shown
    resolved = ask(["config", "digits-mini", "--plugin", "soft_labels.py"], capsys)
    assert '[soft-labels] smoothing = 0.1 noise = "some"' in resolved
    assert "--soft-labels" not in ask(["train", "--help"], capsys)


@pytest.mark.parametrize(
    ("flag", "value", "answer"),
    [
        ("--soft-labels.smoohting", "1", "Did you mean --soft-labels.smoothing?"),
        ("--soft-label.smoothing", "1", "Did you mean --soft-labels.smoothing?"),
        ("--smoothing", "1", "Did you mean --soft-labels.smoothing?"),
        ("--soft-labels.smoothing", "2", "at most 1"),
        ("--soft-labels.noise", "much", "none"),
    ],
)
def test_a_wrong_option_is_refused_with_the_nearest(flag, value, answer, plugin, here, capsys):
    said = ask(["train", "digits-mini", "--plugin", "soft_labels.py", flag, value], capsys, 2)
    assert answer in said


def test_a_config_file_may_have_its_section_and_repeats_a_run(plugin, here, capsys):
    out = train(here, capsys, "--soft-labels.smoothing", "0.3")
    again = ["train", "--config", "run/config.toml", "--quiet"]
    said = ask([*again, "--out", "again"], capsys, 2)
    assert "--plugin soft_labels.py" in said
    ask([*again, "--plugin", "soft_labels.py", "--out", "again"], capsys)
    for file in ("config.toml", "metrics.jsonl", "model/model.safetensors"):
        assert (here / "again" / file).read_bytes() == (out / file).read_bytes()
    plugin.write_text(plugin.read_text() + "# changed\n")  # a new run, so it may be
    ask([*again, "--plugin", "soft_labels.py", "--out", "third"], capsys)
    now = hashlib.sha256(plugin.read_bytes()).hexdigest()
    assert read_toml(here / "third/config.toml")["plugin"].endswith(now)


@contextmanager
def stopped_at_step(number: int, monkeypatch) -> Iterator[None]:
    steps, step = itertools.count(1), loop.train_step

    def counted(*args, **kwargs):
        if next(steps) == number:
            signal.raise_signal(signal.SIGTERM)
        return step(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "train_step", counted)
        yield


def stopped_run(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> Path:
    save_photos(here / "photos")
    with stopped_at_step(2, monkeypatch):
        arguments = ["train", "photos", "--plugin", "soft_labels.py", "--out", "run", *SHORT]
        ask(arguments, capsys, 143)
    return here / "run"


def test_a_stopped_run_goes_on_with_the_same_file_only_and_ends_equal(
    plugin, here, capsys, monkeypatch
):
    out = stopped_run(here, capsys, monkeypatch)
    text = plugin.read_text()
    for name, content in (("soft_labels.py", text + "\n"), ("soft_labels.py", text[1:])):
        (here / name).write_text(content)
        said = ask(["resume", "run", "--plugin", name], capsys, 2)
        assert "started with different options: plugin:" in said
    assert "Pass it with --plugin" in ask(["resume", "run", "--quiet"], capsys, 2)
    (here / "other_labels.py").write_text(text)
    said = ask(["resume", "run", "--plugin", "other_labels.py"], capsys, 2)
    assert "--plugin soft_labels.py" in said and "other_labels" not in said
    (here / "kept").mkdir()
    (here / "kept/soft_labels.py").write_text(text)  # where it lies does not matter
    ask(["resume", "run", "--plugin", "kept/soft_labels.py", "--quiet"], capsys)
    plugin.write_text(text)
    whole = train(here, capsys, out="whole")
    for file in ("metrics.jsonl", "model/model.safetensors"):
        assert (out / file).read_bytes() == (whole / file).read_bytes()


def test_a_run_folder_never_makes_its_plugin_run(plugin, here, capsys, monkeypatch):
    """Not even where the file lies beside it, in it, or where Python looks for modules."""
    out = stopped_run(here, capsys, monkeypatch)
    (here / "was-executed").unlink()
    (out / "soft_labels.py").write_bytes(plugin.read_bytes())
    monkeypatch.syspath_prepend(str(here))
    config = (out / "config.toml").read_text()
    for recorded in (str(plugin), "./soft_labels.py", f"{out}/soft_labels.py"):
        (out / "config.toml").write_text(config.replace('"soft_labels.py', f'"{recorded}'))
        for command in (
            ["resume", str(out)], ["evaluate", str(out), "photos"], ["runs", str(out)],
            ["train", "--config", str(out / "config.toml"), "--out", "other"],
        ):  # fmt: skip
            run(command, debug=False)
            assert not (here / "was-executed").exists(), command


FAULTS: dict[str, tuple[str, str]] = {
    "syntax": ("x = = 1\n", "is not valid Python: line 1: invalid syntax"),
    "raises": ("\n1 / 0\n", "line 2: ZeroDivisionError"),
    "exits": ("\nraise SystemExit(0)\n", "line 2: SystemExit"),
    "no method": (PLUGIN.replace("class Soft(Method)", "class Soft(torch.nn.Module)"), "not 0"),
    "two methods": (PLUGIN + "\n\nclass More(Soft):\n    pass\n", "not 2"),
    "no dataclass": (PLUGIN.replace("@dataclass(frozen=True, kw_only=True)", ""), "frozen"),
    "no help": (
        PLUGIN.replace('option(0.1, "share of the other classes", at_least=0, at_most=1)', "0.1"),
        "'smoothing' of the plugin",
    ),
    "bad default": (PLUGIN.replace("option(0.1,", "option(7.0,"), "must be at most 1"),
    "no loss": (PLUGIN.replace("def loss", "def lost"), "has no loss"),
    "not text": ("\udcff\udcfe\n", "not valid Python"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_file_that_is_no_plugin_is_refused_before_anything_is_done(name, here, capsys):
    content, answer = FAULTS[name]
    file = here / "soft_labels.py"
    file.write_bytes(content.replace("MARKER", "/dev/null").encode("utf-8", "surrogateescape"))
    said = ask(["train", "digits-mini", "--out", "run", "--plugin", "soft_labels.py"], capsys, 2)
    assert answer in said and "Traceback" not in said
    assert [path.name for path in here.iterdir()] == ["soft_labels.py"]
    assert not any("soft_labels" in module for module in sys.modules)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("peer", "'peer' already exists"),
        ("p_ens", "'p-ens' already exists"),
        ("train", "'train' is the name of an option"),
        ("digits_mini", "'digits-mini' is the name of an option"),
        ("my-method", "not a valid name"),
    ],
)
def test_a_name_that_is_taken_or_no_name_is_refused(name, answer, here, capsys):
    (here / f"{name}.py").write_text(PLUGIN.replace("MARKER", "/dev/null"))
    known = method_names()
    said = ask(["train", "digits-mini", "--plugin", f"{name}.py"], capsys, 2)
    assert answer in said
    assert method_names() == known


def test_a_plugin_that_cannot_be_read_is_refused(here, capsys):
    asked = ["train", "digits-mini", "--plugin"]
    assert "There is no plugin none.py" in ask([*asked, "none.py"], capsys, 2)
    (here / "folder.py").mkdir()
    assert "folder.py" in ask([*asked, "folder.py"], capsys, 2)
    assert "not a valid name" in ask([*asked, "notes.txt"], capsys, 2)
    assert "--plugin" in ask(asked, capsys, 2)
    assert "Unknown option --plugin" in ask(["predict", "x", "y", "--plugin", "a.py"], capsys, 2)


def test_an_error_of_a_plugin_while_it_trains_is_called_one(plugin, here, capsys):
    plugin.write_text(plugin.read_text().replace("self.steps += 1", "self.stesp += 1"))
    save_photos(here / "photos")
    said = ask(["train", "photos", "--plugin", "soft_labels.py", *SHORT], capsys, 1)
    assert "stesp" in said
    assert "The plugin soft_labels.py failed." in said and "bug in peerdg" not in said


def test_a_bench_compares_it_with_methods_of_the_package(plugin, here, capsys):
    save_photos(here / "photos")
    save_photos(here / "others", seed=1)
    asked = [
        "bench", "photos", "--target", "others", "--methods", "erm,soft-labels", "--seeds", "1",
        "--plugin", "soft_labels.py", "--soft-labels.smoothing", "0.3", "--out", "b", *SHORT[:-1],
    ]  # fmt: skip
    shown = ask(asked, capsys)
    assert "soft-labels" in shown.partition("target mean")[2]
    config = read_toml(here / "b" / "runs" / "soft-labels-0" / "config.toml")
    digest = hashlib.sha256(plugin.read_bytes()).hexdigest()
    assert config["plugin"] == f"soft_labels.py sha256:{digest}"
    assert config["soft-labels"]["smoothing"] == 0.3
    assert "plugin" not in read_toml(here / "b" / "runs" / "erm-0" / "config.toml")
    plugin.write_text(plugin.read_text() + "\n# changed\n")
    assert "plugin: " in ask(asked, capsys, 2)
    without = [word for word in asked if word not in ("--plugin", "soft_labels.py")]
    assert "soft-labels" in ask(without, capsys, 2)
