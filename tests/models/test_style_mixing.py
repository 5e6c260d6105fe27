"""The style mixing layer: equation, draws, and identity in eval mode."""

import pytest
import torch

from peerdg.models.layers import STYLE_EPS, StyleMixing
from peerdg.rng import seeded

MAPS = torch.randn(6, 4, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
SHARE = torch.rand(6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
OTHER = torch.tensor([3, 0, 2, 5, 1, 4])


def plain(x: torch.Tensor, share: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The paper's equations for one image and channel at a time."""
    result = torch.empty_like(x)
    for i in range(len(x)):
        j, lam = int(other[i]), share[i]
        for c in range(x.shape[1]):
            ours, theirs = x[i, c].flatten(), x[j, c].flatten()
            mu, mu_other = ours.sum() / 25, theirs.sum() / 25
            sigma = (((ours - mu) ** 2).sum() / 25 + STYLE_EPS) ** 0.5
            sigma_other = (((theirs - mu_other) ** 2).sum() / 25 + STYLE_EPS) ** 0.5
            gamma = lam * sigma + (1 - lam) * sigma_other
            result[i, c] = gamma * (x[i, c] - mu) / sigma + lam * mu + (1 - lam) * mu_other
    return result


def test_it_computes_the_equations_of_the_paper():
    result = StyleMixing().mixed(MAPS, SHARE, OTHER)
    torch.testing.assert_close(result, plain(MAPS, SHARE, OTHER), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(result, MAPS)


def test_maps_with_channels_last_are_mixed_alike():
    tokens = MAPS.permute(0, 2, 3, 1)
    result = StyleMixing(channel=3).mixed(tokens, SHARE, OTHER)
    torch.testing.assert_close(result.permute(0, 3, 1, 2), plain(MAPS, SHARE, OTHER))
    flat = StyleMixing(channel=2).mixed(tokens.flatten(1, 2), SHARE, OTHER)
    torch.testing.assert_close(flat, result.flatten(1, 2))


def test_an_image_gets_the_style_of_another_and_keeps_its_pattern():
    layer = StyleMixing()
    assert torch.allclose(layer.mixed(MAPS, torch.ones(6), OTHER), MAPS)
    theirs = layer.mixed(MAPS, torch.zeros(6), OTHER)
    for result, expected in (
        (theirs.mean((2, 3)), MAPS[OTHER].mean((2, 3))),
        (theirs.std((2, 3)), MAPS[OTHER].std((2, 3))),
    ):
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
    pattern = (MAPS - MAPS.mean((2, 3), keepdim=True)) / MAPS.std((2, 3), keepdim=True)
    normalized = (theirs - theirs.mean((2, 3), keepdim=True)) / theirs.std((2, 3), keepdim=True)
    torch.testing.assert_close(normalized, pattern, rtol=1e-5, atol=1e-5)


def test_gradients_do_not_pass_through_the_statistics():
    x = MAPS.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(StyleMixing().mixed(x, SHARE, OTHER).sum(), x)
    sigma = (MAPS.var((2, 3), correction=0, keepdim=True) + STYLE_EPS).sqrt()
    share = SHARE.view(-1, 1, 1, 1)
    expected = (share * sigma + (1 - share) * sigma[OTHER]) / sigma
    torch.testing.assert_close(gradient, expected.expand_as(MAPS))


def test_in_eval_mode_and_with_probability_zero_it_is_the_identity():
    layer = StyleMixing(p=1.0).eval()
    before = torch.random.get_rng_state()
    assert layer(MAPS) is MAPS
    assert torch.equal(torch.random.get_rng_state(), before)
    assert StyleMixing(p=0.0).train()(MAPS) is MAPS


def test_a_pass_is_mixed_as_a_whole_with_probability_p():
    layer = StyleMixing(p=0.3).train()
    with seeded(0, "test"):
        mixed = [layer(MAPS) is not MAPS for _ in range(2000)]
    assert abs(sum(mixed) / 2000 - 0.3) < 0.035  # over three standard deviations
    assert all(StyleMixing(p=1.0).train()(MAPS) is not MAPS for _ in range(50))


def test_its_draws_are_a_permutation_and_shares_of_a_beta_distribution(monkeypatch):
    layer = StyleMixing(p=1.0, alpha=0.1).train()
    shares, others = [], []
    monkeypatch.setattr(
        layer, "mixed", lambda x, share, other: (shares.append(share), others.append(other), x)[2]
    )
    x = torch.zeros(40, 1, 2, 2)
    with seeded(1, "test"):
        for _ in range(200):
            layer(x)
    drawn = torch.cat(shares).double()
    assert abs(float(drawn.mean()) - 0.5) < 0.02
    assert abs(float(drawn.var()) - 1 / (4 * 1.2)) < 0.01  # 1 / (4 (2α + 1))
    assert all(torch.equal(o.sort().values, torch.arange(40)) for o in others)
    assert len({tuple(o.tolist()) for o in others}) == 200


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layout_and_type_of_the_maps_are_kept(dtype):
    x = MAPS.to(dtype).contiguous(memory_format=torch.channels_last)
    result = StyleMixing().mixed(x, SHARE.float(), OTHER)
    assert result.dtype == dtype
    assert result.is_contiguous(memory_format=torch.channels_last)
    expected = plain(x.double(), SHARE, OTHER)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)
