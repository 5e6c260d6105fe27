"""The mean of snapshots, its window and its batch statistics."""

import copy

import pytest
import torch
from torch.optim.swa_utils import update_bn

from peerdg.averages.snapshots import Snapshots
from peerdg.errors import ConfigError, NumericalError
from tests.conftest import tiny_classifier, tiny_domain


def jiggle(model, seed):
    """A snapshot: the same network with other weights and other statistics."""
    torch.manual_seed(seed)
    snapshot = copy.deepcopy(model)
    with torch.no_grad():
        for p in snapshot.parameters():
            p.add_(torch.randn_like(p))
        for name, b in snapshot.named_buffers():
            if "running" in name:
                b.add_(torch.rand_like(b))
            if "num_batches" in name:
                b.add_(seed)
    return snapshot


@pytest.mark.parametrize("count", [1, 2, 7, 60])
def test_equals_the_arithmetic_mean_of_the_snapshots(count):
    model = tiny_classifier()
    average = Snapshots(model, bn="copy")
    snapshots = [jiggle(model, seed) for seed in range(count)]
    for snapshot in snapshots:
        average.add(snapshot)
    assert average.count == count
    for name, parameter in average.model.named_parameters():
        mean = torch.stack([dict(s.named_parameters())[name].double() for s in snapshots]).mean(0)
        assert (parameter - mean).abs().max() < 1e-6


def test_is_the_initial_network_until_the_first_snapshot():
    model = tiny_classifier()
    average = Snapshots(model, bn="copy")
    assert torch.equal(average.model.head.weight, model.head.weight)
    snapshot = jiggle(model, 1)
    average.add(snapshot)
    assert torch.equal(average.model.head.weight, snapshot.head.weight)


def test_is_frozen_and_never_in_train_mode():
    average = Snapshots(tiny_classifier(dropout=0.5).train(), bn="copy")
    assert not any(module.training for module in average.modules() if module is not average)
    average.train()
    assert not any(module.training for module in average.modules())
    assert not any(p.requires_grad for p in average.parameters())


@pytest.mark.parametrize("rule", ["average", "copy", "frozen"])
def test_batch_statistics_follow_the_rule(rule):
    model = tiny_classifier(batch_norm=True)
    start = model.encoder.norm.running_mean.clone()
    average = Snapshots(model, bn=rule)
    snapshots = [jiggle(model, seed) for seed in (1, 2, 3)]
    for snapshot in snapshots:
        average.add(snapshot)
    means = torch.stack([s.encoder.norm.running_mean for s in snapshots])
    expected = {"average": means.mean(0), "copy": means[-1], "frozen": start}[rule]
    torch.testing.assert_close(average.model.encoder.norm.running_mean, expected)
    assert int(average.model.encoder.norm.num_batches_tracked) == 3  # of the newest snapshot


def test_recalibration_after_an_update_leaves_the_statistics_of_the_averaged_weights():
    images = tiny_domain(n=32).images.split(8)
    model = tiny_classifier(batch_norm=True)
    average = Snapshots(model, bn="recalibrate", clean=images)
    for seed in (1, 2):
        average.add(jiggle(model, seed))
    expected = copy.deepcopy(average.model)
    update_bn(list(images), expected)
    torch.testing.assert_close(
        average.model.encoder.norm.running_var, expected.encoder.norm.running_var
    )


def test_recalibration_without_clean_images_is_refused():
    with pytest.raises(ConfigError, match="clean source images"):
        Snapshots(tiny_classifier(batch_norm=True), bn="recalibrate")


def test_a_snapshot_with_nan_never_reaches_the_average():
    model = tiny_classifier()
    average = Snapshots(model, bn="copy")
    average.add(model)
    before = copy.deepcopy(average.state_dict())
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.head.weight[0, 0] = float("nan")
    with pytest.raises(NumericalError, match=r"head\.weight"):
        average.add(broken)
    for name, value in average.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize(("start", "last"), [(0, None), (2, None), (0, 1), (0, 3), (2, 3), (1, 2)])
@pytest.mark.parametrize("bn", ["average", "copy"])
def test_a_window_is_the_mean_of_its_snapshots(start, last, bn):
    """Expect the newest `last` without the first `start`, or the newest alone before these."""
    model = tiny_classifier(batch_norm=True)
    average = Snapshots(model, bn=bn, start=start, last=last)
    snapshots = [jiggle(model, seed) for seed in range(7)]
    for taken in range(1, 8):
        average.add(snapshots[taken - 1])
        window = snapshots[start:taken][-(last or 7) :] or [snapshots[taken - 1]]
        assert average.count == len(window)
        assert average.version == taken
        mean = torch.stack([s.head.weight for s in window]).mean(0)
        torch.testing.assert_close(average.model.head.weight, mean)
        statistics = torch.stack([s.encoder.norm.running_mean for s in window])
        expected = statistics.mean(0) if bn == "average" else statistics[-1]
        torch.testing.assert_close(average.model.encoder.norm.running_mean, expected)


@pytest.mark.parametrize("last", [None, 1, 3])
def test_a_restored_average_continues_exactly(last):
    model = tiny_classifier(batch_norm=True)
    snapshots = [jiggle(model, seed) for seed in range(6)]
    whole, first, second = (Snapshots(model, start=1, last=last) for _ in range(3))
    for snapshot in snapshots:
        whole.add(snapshot)
    for snapshot in snapshots[:4]:
        first.add(snapshot)
    second.load_state_dict(first.state_dict())
    for snapshot in snapshots[4:]:
        second.add(snapshot)
    ours, theirs = second.state_dict(), whole.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_period_is_averaged_at_its_end_and_only_once():
    model = tiny_classifier()
    average = Snapshots(model, k=2)
    records = [average.after_epoch(jiggle(model, epoch), epoch) for epoch in range(5)]
    assert records == [{}, {"snapshots": 1}, {}, {"snapshots": 2}, {}]
    # A resumed run ends the epoch again.
    assert average.after_epoch(jiggle(model, 9), 3) == {"snapshots": 2}
    mean = torch.stack([jiggle(model, epoch).head.weight for epoch in (1, 3)]).mean(0)
    torch.testing.assert_close(average.model.head.weight, mean)
    assert average.epochs_seen(5) == 4
