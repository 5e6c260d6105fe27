"""SWAD's valley against windows found by hand, and its streaming mean against all segments."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peerdg.averages.swad import SWAD, valley
from tests.conftest import tiny_classifier


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        # Falls, is flat from 3 on, rises. At 4 the row (0.50, 0.52, 0.55) begins with its smallest:
        # threshold 0.5233 * 1.3 = 0.6803. Before 4, as far as six segments reach (from 1 on): 3
        # (0.60) is under it, 2 (0.70) is not. From 8 on no loss is under it.
        ([2.0, 1.0, 0.70, 0.60, 0.50, 0.52, 0.55, 0.6, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9], (3, 8)),
        # One bad loss inside the valley does not end it: the six from it on have a good one.
        ([1.0, 0.5, 0.6, 0.6, 0.9, 0.6, 0.6], (1, 7)),
        # A rise that lasts for as long as the queue ends it, though the loss comes back later.
        ([1.0, 0.5, 0.6, 0.6, *[0.9] * 6, 0.5], (1, 4)),
        # Rising from the start: converged at the first segment, threshold 0.7 * 1.3 = 0.91.
        ([0.6, 0.7, 0.8, 0.95, 1.0, 1.0, 1.0, 1.0, 1.0], (0, 3)),
        ([3.0, 2.0, 1.0, 0.5], None),  # still falling
        ([1.0, 1.0], None),  # too few to tell
    ],
)
def test_the_valley_is_the_one_found_by_hand(losses, expected):
    assert valley(losses) == (None if expected is None else range(*expected))


def follow(losses, *, every=1, steps=None, **rule):
    """An average over random networks with given validation losses, and these networks."""
    model = tiny_classifier(batch_norm=True)
    given_losses = iter(losses)
    average = SWAD(model, loss=lambda _: next(given_losses), every=every, **rule)
    networks = []
    for step in range(steps or len(losses)):
        torch.manual_seed(step)
        for tensor in (*model.parameters(), model.encoder.norm.running_mean):
            tensor.data = torch.randn_like(tensor)
        average.after_step(model)
        networks.append(copy.deepcopy(model))
    return average, networks


def assert_mean_of(average, networks):
    served = dict(average.model.state_dict())
    for name, value in served.items():
        if value.is_floating_point():
            mean = torch.stack([n.state_dict()[name].double() for n in networks]).mean(0)
            torch.testing.assert_close(value.double(), mean, atol=1e-5, rtol=1e-5)


@given(
    losses=st.lists(st.floats(0.1, 2.0), min_size=1, max_size=25),
    converge=st.integers(1, 4),
    tolerance=st.integers(1, 7),
)
@settings(max_examples=60, deadline=None)
def test_the_streaming_mean_is_the_mean_of_the_valleys_segments(losses, converge, tolerance):
    average, networks = follow(losses, converge=converge, tolerance=tolerance)
    window = valley(losses, converge=converge, tolerance=max(converge, tolerance))
    chosen = networks[window.start : window.stop] if window else networks[-1:]
    assert_mean_of(average, chosen)
    assert average.count == len(chosen)


def test_segments_weigh_the_same_whatever_their_number_of_steps():
    # Segments end after steps 0, 3 and 6: the first has one step, the others have three.
    average, networks = follow([0.5, 0.6, 0.6], every=3, steps=7)
    first, *rest = networks
    mean = copy.deepcopy(first)
    with torch.no_grad():
        for name, parameter in mean.named_parameters():
            values = [n.get_parameter(name) for n in rest]
            parameter.add_(sum(values[:3]) / 3).add_(sum(values[3:]) / 3).div_(3)
    for ours, theirs in zip(average.model.parameters(), mean.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("stop", range(0, 14, 3))
def test_a_restored_average_continues_exactly(stop):
    losses = [1.0, 0.8, 0.5, 0.6, 0.6, 0.7, 0.6, 0.9, 0.6, 0.9, 0.9, 0.9, 0.9, 0.9]
    whole, networks = follow(losses)
    first = SWAD(tiny_classifier(batch_norm=True), loss=lambda _: remaining.pop(0), every=1)
    remaining = list(losses)
    for network in networks[:stop]:
        first.after_step(network)
    second = SWAD(tiny_classifier(batch_norm=True), loss=lambda _: remaining.pop(0), every=1)
    second.load_state_dict(first.state_dict())
    for network in networks[stop:]:
        second.after_step(network)
    for ours, theirs in zip(
        second.model.state_dict().values(), whole.model.state_dict().values(), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_asking_for_the_model_changes_nothing():
    asked, networks = follow([1.0, 0.5, 0.6, 0.6])
    before = {k: v.clone() for k, v in asked.mean.state_dict().items()}
    assert_mean_of(asked, networks[1:4])
    assert_mean_of(asked, networks[1:4])
    assert all(torch.equal(v, before[k]) for k, v in asked.mean.state_dict().items())


def test_the_end_of_training_closes_the_last_segment():
    # Segments are step 0, steps 1 to 3, and steps 4 and 5, closed by the end of the last epoch.
    average, networks = follow([1.0, 0.5, 0.4], every=3, steps=6, epochs=2)
    average.after_epoch(networks[-1], 0)
    assert_mean_of(average, networks[1:4])  # still falling: the newest closed segment
    average.after_epoch(networks[-1], 1)
    assert_mean_of(average, networks[4:6])


def test_a_segment_that_the_last_step_closed_is_not_closed_again():
    average, networks = follow([1.0, 0.5], every=3, steps=4, epochs=1)
    average.after_epoch(networks[-1], 0)  # a third loss would end the iterator with an error
    assert average.version == 2
