"""A method that changes its network: trained, resumed, stored and compared as that network."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import pytest
import torch
from safetensors.torch import load_file

import peerdg
from peerdg.errors import ConfigError
from peerdg.methods.base import Method, MethodSettings, RunContext
from peerdg.methods.erm import ERM
from peerdg.methods.registry import METHODS
from peerdg.models.classifier import Classifier
from peerdg.models.stored import load_stored
from peerdg.options import option
from tests.conftest import tiny_classifier, tiny_splits
from tests.run.stops import stopped_at


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Cross-entropy through a bottleneck."""

    dim: int = option(5, "width", at_least=1)
    when: Literal["pretrain", "train"] = option("pretrain", "first phase with the bottleneck")
    smallest: int = option(1, "side of images", at_least=1)

    @property
    def adapts_before(self):
        return self.when

    def check_images(self, side):
        if side < self.smallest:
            raise ConfigError(f"Images of {side} pixels are too small.")


class Narrow(ERM):
    """ERM on an adapted network."""

    shrink = 0

    @classmethod
    def build(cls, model: Classifier, settings: Any, context: RunContext) -> Self:
        assert context.image_size == 12
        return cls(model)

    @classmethod
    def adapt(cls, model: Classifier, settings: Any, size: int) -> Classifier:
        layer = {"kind": "gaussian-bottleneck", "place": "features", "inputs": model.encoder_dim}
        return model.with_layers([{**layer, "outputs": settings.dim - cls.shrink, "noise": 0.2}])


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "narrow", __name__)


def fit(out: Path, *, existing: str = "refuse", when: str = "pretrain", dim: int = 5, **options):
    model = tiny_classifier(batch_norm=True, dropout=0.3)
    return peerdg.fit(
        tiny_splits(), out=out, model=model, existing=existing, method="narrow",
        pretrain={"epochs": 1, "batch_size": 8},
        train={"epochs": 2, "batch_size": 8, "lr": 0.01},
        evaluate_every=1, checkpoint_minutes=0.0,
        narrow={"dim": dim, "when": when, **options},
    )  # fmt: skip


@pytest.mark.parametrize("when", ["pretrain", "train"])
def test_an_adapted_run_resumes_exactly_and_loads_without_its_method(when, tmp_path):
    whole = fit(tmp_path / "whole", when=when)
    weights = (whole.path / "model/model.safetensors").read_bytes()
    for batch in (3, 8):
        out = tmp_path / f"stopped-{batch}"
        with stopped_at(batch):
            fit(out, when=when)
        resumed = fit(out, when=when, existing="resume")
        assert (resumed.path / "model/model.safetensors").read_bytes() == weights, batch
    loaded, description = load_stored(whole.path / "model", tiny_classifier(batch_norm=True))
    assert [layer["outputs"] for layer in description["added_layers"]] == [5]
    images = tiny_splits().validation.images
    with torch.no_grad():
        assert torch.equal(loaded(images), whole.model.classifier(images))
    finished = fit(tmp_path / "whole", when=when, existing="resume")
    assert finished.model.classifier.added == loaded.added


@pytest.mark.parametrize(("when", "width"), [("pretrain", 5), ("train", 8)])
def test_the_network_changes_before_the_phase_that_the_method_names(when, width, tmp_path):
    with stopped_at(3):  # the last step of pre-training
        fit(tmp_path / "run", when=when)
    stop = sorted((tmp_path / "run/checkpoint").glob("*/"))[-1]
    found = {k: v for file in stop.glob("*.safetensors") for k, v in load_file(file).items()}
    assert found["method.model.head.weight"].shape == (3, width)


def test_pretraining_of_the_plain_network_is_that_of_every_method(tmp_path, monkeypatch):
    """So it may be shared: with the change before the main phase, both networks agree."""
    weights: dict[str, dict[str, torch.Tensor]] = {}

    for name, method in (("narrow", Narrow), ("erm", ERM)):
        build = method.build.__func__

        def noted(cls, model, settings, context, build=build, name=name) -> Method:
            weights[name] = {k: v.clone() for k, v in model.encoder.state_dict().items()}
            return build(cls, model, settings, context)

        monkeypatch.setattr(method, "build", classmethod(noted))
        own = {"narrow": {"when": "train"}} if name == "narrow" else {}
        peerdg.fit(
            tiny_splits(), out=tmp_path / name, model=tiny_classifier(), method=name,
            pretrain={"epochs": 1, "batch_size": 8}, train={"epochs": 1, "batch_size": 8}, **own,
        )  # fmt: skip
    assert all(torch.equal(weights["narrow"][k], v) for k, v in weights["erm"].items())


def test_a_run_whose_method_now_changes_the_network_otherwise_is_not_resumed(tmp_path, monkeypatch):
    with stopped_at(5):
        fit(tmp_path / "run")
    monkeypatch.setattr(Narrow, "shrink", 1)
    with pytest.raises(ConfigError, match="layers"):
        fit(tmp_path / "run", existing="resume")


def test_options_that_do_not_fit_the_images_are_refused_before_any_work(tmp_path):
    with pytest.raises(ConfigError, match="Images of 12 pixels are too small"):
        fit(tmp_path / "run", smallest=13)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
