"""EMA and SMA against their closed forms and torch's own averaging."""

import copy
import math

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from peerdg.averages.moving import EMA, SMA
from peerdg.errors import ConfigError
from tests.conftest import tiny_classifier


def walk(steps, seed=0):
    """A network after each of some random steps."""
    torch.manual_seed(seed)
    model = tiny_classifier(batch_norm=True)
    start, path = copy.deepcopy(model), []
    for _ in range(steps):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p))
            model.encoder.norm.running_mean.normal_()
            model.encoder.norm.num_batches_tracked += 1
        path.append(copy.deepcopy(model))
    return start, path


def follow(average, path):
    for model in path:
        average.after_step(model)
    return average


def test_ema_has_its_closed_form():
    start, path = walk(20)
    ours = follow(EMA(start, decay=0.9, warm_up=False), path).model
    for name, value in ours.named_parameters():
        closed = 0.9**20 * start.get_parameter(name).double()
        for t, model in enumerate(path):
            closed += 0.1 * 0.9 ** (19 - t) * model.get_parameter(name).double()
        torch.testing.assert_close(value.double(), closed, atol=1e-5, rtol=1e-5)


def test_ema_equals_torchs_after_its_copying_first_update():
    start, path = walk(8)
    reference = AveragedModel(start, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    reference.update_parameters(start)  # torch's first update copies
    for model in path:
        reference.update_parameters(model)
    ours = follow(EMA(start, decay=0.99, warm_up=False), path).model
    for a, b in zip(ours.parameters(), reference.module.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("decay", [0.25, 1.0])
def test_a_warm_ema_has_its_closed_form_after_each_of_the_first_steps(decay: float):
    """θ̄_T = Π_t d_t θ_0 + Σ_t (1 - d_t) Π_{s>t} d_s θ_t with d_t = min(d, (1 + t) / (10 + t))."""
    start, path = walk(6)
    networks = torch.stack([m.head.weight.detach().double() for m in (start, *path)])
    average = EMA(start, decay=decay)
    decays = []
    for t, model in enumerate(path):
        average.after_step(model)
        decays.append(min(decay, (1 + t) / (10 + t)))
        later = [math.prod(decays[s:]) for s in range(t + 2)]  # the last product is empty: 1
        shares = [later[0], *((1 - d) * later[s + 1] for s, d in enumerate(decays))]
        closed = torch.tensordot(torch.tensor(shares).double(), networks[: t + 2], dims=1)
        torch.testing.assert_close(average.model.head.weight.double(), closed, rtol=0, atol=1e-6)


def test_an_ema_that_could_never_move_is_refused():
    with pytest.raises(ConfigError, match="decay"):
        EMA(tiny_classifier(), warm_up=False)


@pytest.mark.parametrize("start_step", [0, 1, 3])
def test_sma_is_the_mean_of_all_networks_from_t0_on(start_step):
    start, path = walk(10)
    average = follow(SMA(start, start=start_step), path)
    chosen = [start, *path][start_step:]  # the network after t0 steps is the first of the mean
    mean = torch.stack([m.head.weight for m in chosen]).mean(0)
    torch.testing.assert_close(average.model.head.weight, mean)
    assert average.count == len(chosen)


def test_sma_is_the_network_itself_up_to_t0():
    start, path = walk(5)
    average = SMA(start, start=5)
    for model in path:
        average.after_step(model)
        assert torch.equal(average.model.head.weight, model.head.weight)


@pytest.mark.parametrize("kind", [EMA, SMA])
def test_batch_statistics_are_averaged_and_their_counter_is_the_newest(kind):
    start, path = walk(3)
    average = follow(kind(start, **({"start": 1} if kind is SMA else {"decay": 0.5})), path).model
    statistics = average.encoder.norm.running_mean
    assert not any(torch.equal(statistics, m.encoder.norm.running_mean) for m in (start, *path))
    assert int(average.encoder.norm.num_batches_tracked) == 3


@pytest.mark.parametrize("kind", [EMA, SMA])
def test_is_frozen_and_never_in_train_mode(kind):
    average = kind(tiny_classifier(dropout=0.5)).train()
    assert not any(module.training for module in average.modules())
    assert not any(p.requires_grad for p in average.parameters())


@pytest.mark.parametrize("kind", [EMA, SMA])
def test_a_restored_average_continues_exactly(kind):
    start, path = walk(12)
    options = {"start": 4} if kind is SMA else {"decay": 0.9}
    whole = follow(kind(start, **options), path)
    for stop in (0, 3, 4, 7):
        second = kind(start, **options)
        second.load_state_dict(follow(kind(start, **options), path[:stop]).state_dict())
        follow(second, path[stop:])
        assert torch.equal(second.model.head.weight, whole.model.head.weight)
