"""The layer of meta-features: addressing, ridge regression, gradients, and its export."""

import numpy as np
import pytest
import torch

from peerdg.models import meta_features
from peerdg.models.meta_features import MetaFeatures, solve

K, D, S, RHO = 12, 5, 3, 0.05


def layer_of(**options) -> MetaFeatures:
    torch.manual_seed(0)
    options = {"atoms": K, "addressed": S, "ridge": RHO, **options}
    layer = MetaFeatures(D, **options).double()
    layer.atoms *= torch.rand(K, 1) + 0.5  # the cosine must not depend on the norms
    return layer


def features(n: int = 7, seed: int = 1) -> torch.Tensor:
    return torch.randn(n, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def plain(layer: MetaFeatures, f: np.ndarray) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Addressed atoms, β and f̂ of one feature, in numpy."""
    atoms = layer.atoms.numpy()
    cosine = atoms @ f / np.linalg.norm(atoms, axis=1) / np.linalg.norm(f)
    chosen = [j for j in np.argsort(-cosine)[: layer.addressed] if cosine[j] >= layer.threshold]
    m = atoms[chosen]  # (s, d)
    # Ridge regression as least squares: ‖Mᵀβ - f‖² + ρ‖β‖².
    stacked = np.vstack((m.T, np.sqrt(layer.ridge) * np.eye(len(chosen))))
    beta = np.linalg.lstsq(stacked, np.concatenate((f, np.zeros(len(chosen)))), rcond=None)[0]
    return chosen, beta, m.T @ beta


@pytest.mark.parametrize("threshold", [-1.0, 0.3])
def test_it_solves_the_ridge_regression_on_the_nearest_atoms(threshold):
    layer, f = layer_of(threshold=threshold), features(20)
    composed = layer.compose(f)[0]
    code = layer.code(f, layer.address(f))
    sizes = set()
    for row in range(20):
        chosen, beta, expected = plain(layer, f[row].numpy())
        sizes.add(len(chosen))
        np.testing.assert_allclose(code[row, chosen], beta, rtol=1e-9, atol=1e-12)
        assert set(code[row].nonzero().flatten().tolist()) == set(chosen)
        np.testing.assert_allclose(composed[row], expected, rtol=1e-9, atol=1e-12)
    assert sizes == {S} if threshold == -1 else len(sizes) > 1


@pytest.mark.parametrize("s", [1, 2, 9])
def test_systems_are_solved_as_numpy_solves_them(s):
    root = torch.randn(20, s, s, dtype=torch.float64)
    systems = root @ root.mT + 0.1 * torch.eye(s, dtype=torch.float64)
    right = torch.randn(20, s, dtype=torch.float64)
    output = solve(systems.permute(1, 2, 0), right.T)
    expected = np.linalg.solve(systems.numpy(), right.numpy()[..., None])[..., 0]
    np.testing.assert_allclose(output.T, expected, rtol=1e-8)


def test_every_pixel_is_composed_independently_in_either_layout():
    layer = layer_of()
    maps = torch.randn(2, D, 3, 4, dtype=torch.float64)
    output = layer(maps)
    for place in np.ndindex(2, 3, 4):
        image, row, column = place
        one = layer.compose(maps[image, :, row, column][None])[0][0]
        torch.testing.assert_close(output[image, :, row, column], one)
    last = layer_of(channel=3)(maps.permute(0, 2, 3, 1))
    torch.testing.assert_close(last.permute(0, 3, 1, 2), output)
    tokens = layer_of(channel=2)(maps.flatten(2).mT)
    torch.testing.assert_close(tokens.mT.reshape(maps.shape), output)


def test_chunks_change_nothing(monkeypatch):
    layer, f = layer_of(), features(50)
    whole = layer.compose(f)[0]
    monkeypatch.setattr(meta_features, "_NUMBERS", S * S * 7)
    assert len(layer._chunks(f)) == 8
    torch.testing.assert_close(layer.compose(f)[0], whole)
    x = f.clone().requires_grad_()
    layer(x.T.reshape(1, D, 10, 5)).square().sum().backward()
    monkeypatch.undo()
    y = f.clone().requires_grad_()
    layer(y.T.reshape(1, D, 10, 5)).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_its_gradient_is_that_of_finite_differences():
    layer = layer_of()
    maps = torch.randn(2, D, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (maps,), eps=1e-7, atol=1e-6)


def test_straight_through_passes_the_gradient_as_it_is():
    maps = torch.randn(2, D, 2, 2, dtype=torch.float64)
    upstream = torch.randn_like(maps)
    gradients = {}
    for kind in ("closed-form", "straight-through"):
        x = maps.clone().requires_grad_()
        composed = layer_of(gradient=kind)(x)
        torch.testing.assert_close(composed, layer_of()(maps))
        gradients[kind] = torch.autograd.grad(composed, x, upstream)[0]
    assert torch.equal(gradients["straight-through"], upstream)
    assert not torch.allclose(gradients["closed-form"], upstream)


def test_only_the_span_of_the_atoms_is_kept():
    layer = layer_of(ridge=1e-9, addressed=1)
    own = 3.0 * layer.atoms[4][None]
    torch.testing.assert_close(layer.compose(own)[0], own, rtol=1e-6, atol=1e-8)
    layer.atoms[:, -1] = 0  # a direction that no atom has
    foreign = torch.zeros(1, D, dtype=torch.float64)
    foreign[0, -1] = 100.0
    torch.testing.assert_close(layer.compose(own + foreign)[0], layer.compose(own)[0])
    zero = torch.zeros(1, D, dtype=torch.float64)
    assert torch.equal(layer.compose(zero)[0], zero)


def test_in_bfloat16_it_computes_in_float32_and_keeps_type_and_layout():
    layer = layer_of().float()
    maps = torch.randn(2, D, 4, 4).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(maps.bfloat16())
    assert output.dtype == torch.bfloat16
    assert output.is_contiguous(memory_format=torch.channels_last)
    expected = layer(maps.bfloat16().float())
    assert torch.equal(output, expected.bfloat16())


def test_sums_are_collected_inside_the_block_only():
    layer, maps = layer_of(), torch.randn(2, D, 3, 3, dtype=torch.float64)
    with layer.collecting() as sums:
        layer(maps)
        layer(maps.clone().requires_grad_())
    before = sums.products.clone()
    layer(maps)
    assert torch.equal(sums.products, before)
    f = maps.movedim(1, -1).reshape(-1, D)
    code = layer.code(f, layer.address(f))
    torch.testing.assert_close(sums.products, 2 * sum(torch.outer(b, b) for b in code))
    torch.testing.assert_close(
        sums.targets, 2 * sum(torch.outer(b, x) for b, x in zip(code, f, strict=True))
    )
    assert sums.used.tolist() == (2 * (code != 0).sum(0)).tolist()


@pytest.mark.filterwarnings("ignore")  # the compiler reads .grad of every tensor
def test_a_compiled_network_composes_alike():
    layer = layer_of()
    model = torch.nn.Sequential(torch.nn.Conv2d(3, D, 1).double(), layer)
    weight = model[0].weight
    x = torch.randn(2, 3, 3, 3, dtype=torch.float64)
    expected = model(x)
    (gradient,) = torch.autograd.grad(expected.square().sum(), weight)
    output = torch.compile(model, backend="eager")(x)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(torch.autograd.grad(output.square().sum(), weight)[0], gradient)
