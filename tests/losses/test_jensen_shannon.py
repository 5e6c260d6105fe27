import math

import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.special import softmax
from scipy.stats import entropy

from peerdg.losses.jensen_shannon import jensen_shannon


def logits(*shape: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_for_two_views_it_is_scipys_squared_distance():
    a, b = logits(5, 4, seed=1), logits(5, 4, seed=2)
    p, q = softmax(a.numpy(), axis=1), softmax(b.numpy(), axis=1)
    expected = (jensenshannon(p, q, axis=1) ** 2).mean()
    assert jensen_shannon(a, b).item() == pytest.approx(expected, rel=1e-5)


def test_for_three_views_it_is_the_mean_divergence_from_the_mixture():
    views = [logits(6, 10, seed=seed) for seed in range(3)]
    p = [softmax(view.numpy(), axis=1) for view in views]
    mixture = sum(p) / 3
    expected = sum(entropy(each, mixture, axis=1) for each in p).mean() / 3
    assert jensen_shannon(*views).item() == pytest.approx(expected, rel=1e-4)


def test_it_is_the_entropy_of_the_mean_less_the_mean_entropy():
    views = [logits(6, 10, seed=seed) for seed in range(3)]
    p = torch.stack([view.softmax(1) for view in views]).numpy()
    expected = (entropy(p.mean(0), axis=1) - entropy(p, axis=2).mean(0)).mean()
    assert jensen_shannon(*views).item() == pytest.approx(expected, rel=1e-4)


def test_equal_predictions_have_none_and_certain_contradictions_the_most():
    same = logits(4, 3)
    assert abs(jensen_shannon(same, same + 7.0, same).item()) < 1e-6
    certain = 1000 * torch.eye(3)
    apart = jensen_shannon(*(row.view(1, 3) for row in certain))
    assert apart.item() == pytest.approx(math.log(3), rel=1e-4)


def test_the_order_of_the_views_does_not_matter():
    a, b, c = (logits(4, 5, seed=seed) for seed in range(3))
    torch.testing.assert_close(jensen_shannon(a, b, c), jensen_shannon(c, a, b))


def test_gradients_reach_every_view_through_the_mixture_too():
    a, b = logits(3, 4, seed=1).double(), logits(3, 4, seed=2).double()
    assert torch.autograd.gradcheck(jensen_shannon, (a.requires_grad_(), b.requires_grad_()))
    certain = (1000 * torch.eye(3)[:1]).requires_grad_()
    jensen_shannon(certain, -certain).backward()
    assert certain.grad is not None and certain.grad.isfinite().all()


def test_bfloat16_is_computed_in_float32():
    a, b = logits(4, 5, seed=1).bfloat16(), logits(4, 5, seed=2).bfloat16()
    assert jensen_shannon(a, b).dtype == torch.float32
    torch.testing.assert_close(jensen_shannon(a, b), jensen_shannon(a.float(), b.float()))


def test_one_view_is_refused():
    with pytest.raises(ValueError, match="at least 2 views"):
        jensen_shannon(logits(2, 3))
