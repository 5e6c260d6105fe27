"""Losses over a batch are computed in float32, wherever they are called."""

import pytest
import torch

from peerdg.losses.barlow_twins import barlow_twins
from peerdg.losses.contrastive import info_nce, supcon
from peerdg.losses.gaussian import club, gaussian_nll
from peerdg.losses.mmd import class_mmd, mmd

LABELS = torch.arange(32) % 3
LOSSES = pytest.mark.parametrize(
    "loss",
    [
        barlow_twins,
        info_nce,
        mmd,
        pytest.param(lambda a, b: supcon(torch.cat((a, b)), LABELS.repeat(2)), id="supcon"),
        pytest.param(lambda a, b: gaussian_nll(a, b, b.flip(0)), id="gaussian_nll"),
        pytest.param(lambda a, b: club(a, b, b.flip(0), LABELS), id="club"),
        pytest.param(lambda a, b: class_mmd(a, b, LABELS, LABELS), id="class_mmd"),
    ],
)


def features(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(32, 6, generator=generator).to(dtype) for _ in range(2)]


@LOSSES
def test_autocast_does_not_reach_into_a_loss(loss):
    z_a, z_b = features()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss(z_a, z_b)
        assert (z_a @ z_b.T).dtype == torch.bfloat16  # else nothing would be tested
    assert torch.equal(inside, loss(z_a, z_b))


@LOSSES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_features_are_widened_first(loss, dtype):
    z_a, z_b = features(dtype)
    value = loss(z_a, z_b)
    assert value.dtype == torch.float32
    assert torch.equal(value, loss(z_a.float(), z_b.float()))


@LOSSES
def test_double_precision_stays(loss):
    z_a, z_b = features(torch.float64)
    assert loss(z_a, z_b).dtype == torch.float64
