"""Properties that all averages share."""

import pytest
import torch

from peerdg.averages.average_options import KINDS, AverageSettings, make_average
from peerdg.averages.base import Average
from peerdg.errors import NumericalError
from peerdg.models.classifier import Classifier
from tests.conftest import tiny_classifier

STEPS = 3  # of an epoch


def make(kind: str, model: Classifier) -> Average:
    losses = iter([3.0, 2.0, 1.0, 2.0, 3.0, 0.5] + [9.0] * 20)  # SWAD converges in the middle
    settings = AverageSettings(t0=5, every=2, tolerance=3)
    return make_average(
        kind, model, settings, k=2, epochs=6, steps=STEPS, validation_loss=lambda _: next(losses)
    )


@torch.no_grad()
def jiggle(model: Classifier) -> None:
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter))
    model.encoder.norm.running_mean.normal_()


def state(average: Average) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in average.model.state_dict().items()}


@pytest.mark.parametrize("kind", KINDS)
def test_the_version_changes_whenever_the_model_does(kind: str):
    torch.manual_seed(0)
    model = tiny_classifier(batch_norm=True)
    average, changes = make(kind, model), 0
    known, version = state(average), average.version

    def look() -> None:
        nonlocal known, version, changes
        current = state(average)
        if any(not torch.equal(value, known[name]) for name, value in current.items()):
            assert average.version != version
            changes += 1
        known, version = current, average.version

    for epoch in range(6):
        for _ in range(STEPS):
            jiggle(model)
            average.after_step(model)
            look()
        average.after_epoch(model, epoch)
        look()
    assert changes >= 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_repeated_end_of_an_epoch_changes_nothing(kind: str):
    torch.manual_seed(0)
    model = tiny_classifier(batch_norm=True)
    average = make(kind, model)
    for epoch in range(6):
        for _ in range(STEPS):
            jiggle(model)
            average.after_step(model)
        records = average.after_epoch(model, epoch)
        before, version = state(average), average.version
        assert average.after_epoch(model, epoch) == records
        assert average.version == version
        assert all(torch.equal(value, before[name]) for name, value in state(average).items())


@pytest.mark.parametrize("place", ["weight", "statistic"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_network_that_is_not_finite_is_announced_at_the_end_of_the_epoch(kind: str, place: str):
    model = tiny_classifier(batch_norm=True)
    average = make(kind, model)
    average.after_step(model)
    average.after_epoch(model, 0)
    tensor = model.head.weight.data if place == "weight" else model.encoder.norm.running_mean
    tensor.flatten()[0] = float("nan")
    average.after_step(model)
    with pytest.raises(NumericalError, match="weight" if place == "weight" else "running_mean"):
        average.after_epoch(model, 1)
