import copy
from contextlib import nullcontext

import pytest
import torch
from torch.optim.swa_utils import update_bn

from peerdg.errors import DataError
from peerdg.models.statistics import clean_statistics, recompute_statistics
from tests.conftest import tiny_classifier, tiny_domain


def test_recomputed_statistics_equal_torchs_update_bn():
    images = tiny_domain(n=32).images.split(8)
    ours, reference = tiny_classifier(batch_norm=True), tiny_classifier(batch_norm=True)
    recompute_statistics(ours.eval(), images)
    update_bn(list(images), reference)
    for a, b in zip(ours.buffers(), reference.buffers(), strict=True):
        assert torch.equal(a, b)
    assert not ours.training


def test_a_smaller_batch_counts_by_its_images():
    batches = [tiny_domain(n=n, seed=n).images for n in (7, 2, 5)]
    model = tiny_classifier(batch_norm=True)
    recompute_statistics(model, batches)
    maps = [model.encoder.conv(batch / 255) for batch in batches]  # inputs of the norm
    for name, statistic in (("running_mean", torch.mean), ("running_var", torch.var)):
        parts = [statistic(part, (0, 2, 3)) * len(part) / 14 for part in maps]
        torch.testing.assert_close(getattr(model.encoder.norm, name), sum(parts))


def test_an_interrupted_pass_leaves_the_statistics_as_they_were():
    model = tiny_classifier(batch_norm=True)
    recompute_statistics(model, [tiny_domain(n=9).images])
    before = copy.deepcopy(model.state_dict())

    def interrupted():
        yield tiny_domain(n=8, seed=5).images
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recompute_statistics(model, interrupted())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert model.encoder.norm.momentum == 0.1


@pytest.mark.parametrize("interrupted", [False, True])
def test_borrowed_statistics_are_given_back(interrupted):
    models = [tiny_classifier(seed=seed, batch_norm=True) for seed in (0, 1)]
    for model in models:
        model(tiny_domain(n=9).images)  # in train mode
    before = [copy.deepcopy(model.state_dict()) for model in models]
    clean = [tiny_domain(n=12, seed=3).images]
    with (
        pytest.raises(KeyboardInterrupt) if interrupted else nullcontext(),
        clean_statistics(models, clean),
    ):
        for model in models:
            reference = copy.deepcopy(model)
            update_bn(clean, reference)
            assert torch.equal(model.encoder.norm.running_var, reference.encoder.norm.running_var)
        if interrupted:
            raise KeyboardInterrupt
    for model, state in zip(models, before, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        assert model.training
        assert model.encoder.norm.training


def test_statistics_given_back_include_those_of_networks_before_a_failing_one():
    model = tiny_classifier(batch_norm=True)
    before = copy.deepcopy(model.state_dict())
    clean = iter([tiny_domain(n=12).images])  # is used up by the first network
    with (
        pytest.raises(DataError),
        clean_statistics([model, tiny_classifier(batch_norm=True)], clean),
    ):
        pass
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("training", [False, True])
def test_recomputing_does_not_use_dropout(training):
    images = tiny_domain(n=16).images.split(8)
    model = tiny_classifier(batch_norm=True, dropout=0.9).train(training)
    model.encoder.late = torch.nn.BatchNorm1d(4).train(training)  # behind the dropout
    drop = model.encoder.drop
    model.encoder.drop = torch.nn.Sequential(drop, model.encoder.late)
    torch.manual_seed(1)
    recompute_statistics(model, images)
    once = model.encoder.late.running_var.clone()
    torch.manual_seed(2)
    recompute_statistics(model, images)
    assert torch.equal(once, model.encoder.late.running_var)
    assert drop.training == model.encoder.late.training == training


@pytest.mark.parametrize("momentum", [0.1, None])
def test_recomputing_leaves_momentum_and_modes_as_they_were(momentum):
    model = tiny_classifier(batch_norm=True, dropout=0.5)
    model.encoder.norm.momentum = momentum
    model.encoder.norm.eval()  # frozen inside a network that is trained
    modes = [module.training for module in model.modules()]
    recompute_statistics(model, tiny_domain(n=16).images.split(8))
    assert model.encoder.norm.momentum == momentum
    assert [module.training for module in model.modules()] == modes


def test_recomputing_from_nothing_is_refused():
    with pytest.raises(DataError, match="no clean images"):
        recompute_statistics(tiny_classifier(batch_norm=True), [])
