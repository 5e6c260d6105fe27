"""Online dictionary learning: sums, descent, and unused atoms."""

import itertools

import numpy as np
import torch

from peerdg.models.meta_features import CodeSums, OnlineDictionary, draw

K, D = 6, 4


def start(seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(K, D, dtype=torch.float64), dim=1)


def batch_of(atoms: torch.Tensor, seed: int, unused: tuple[int, ...] = ()) -> tuple:
    generator = torch.Generator().manual_seed(seed)
    f = torch.randn(30, D, dtype=torch.float64, generator=generator)
    code = torch.randn(30, K, dtype=torch.float64, generator=generator)
    code[:, list(unused)] = 0
    sums = CodeSums(atoms)
    sums.add(f, code, code @ atoms)
    return f, code, sums


def plain_descent(atoms, a, b):
    """Algorithm 2 of Mairal et al. 2009, atom by atom and number by number."""
    atoms = atoms.copy()
    for j in range(K):
        if a[j, j] <= 1e-8:
            continue
        u = np.empty(D)
        for d in range(D):
            others = sum(a[j, k] * atoms[k, d] for k in range(K))
            u[d] = (b[j, d] - others) / a[j, j] + atoms[j, d]
        atoms[j] = u / max(np.sqrt((u**2).sum()), 1.0)
    return atoms


def test_batches_are_followed_as_the_paper_says():
    atoms = start()
    dictionary = OnlineDictionary(K, D, decay=0.7).double()
    expected, a, b = atoms.numpy().copy(), np.zeros((K, K)), np.zeros((K, D))
    for seed in range(3):
        f, code, sums = batch_of(atoms, seed)
        dictionary.learn(atoms, sums)
        a, b = 0.7 * a, 0.7 * b
        for beta, feature in zip(code.numpy(), f.numpy(), strict=True):
            a += np.outer(beta, beta)
            b += np.outer(beta, feature)
        expected = plain_descent(expected, a, b)
        np.testing.assert_allclose(dictionary.products, a, rtol=1e-10)
        np.testing.assert_allclose(dictionary.targets, b, rtol=1e-10)
        np.testing.assert_allclose(atoms, expected, rtol=1e-8, atol=1e-10)
    assert (atoms.norm(dim=1) <= 1 + 1e-12).all()


def objective(atoms: torch.Tensor, f: torch.Tensor, code: torch.Tensor) -> float:
    return float((f - code @ atoms).square().sum()) / 2


def test_descent_lowers_what_the_codes_lose_and_ends_at_its_smallest():
    """With codes that fit, the unconstrained optimum lies in the ball: least squares finds it."""
    truth = 0.5 * start(1)
    _, code, _ = batch_of(truth, 3)
    f = code @ truth
    atoms, dictionary = start(2), OnlineDictionary(K, D, decay=0.0).double()
    losses = [objective(atoms, f, code)]
    for _ in range(60):
        sums = CodeSums(atoms)
        sums.add(f, code, code @ atoms)
        dictionary.learn(atoms, sums)
        losses.append(objective(atoms, f, code))
    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(losses))
    expected = np.linalg.lstsq(code.numpy(), f.numpy(), rcond=None)[0]
    np.testing.assert_allclose(atoms, expected, atol=1e-4)


def test_an_unused_atom_is_unchanged_until_it_is_reseeded():
    atoms, dictionary = start(), OnlineDictionary(K, D).double()
    before = atoms.clone()
    f, _, sums = batch_of(atoms, 0, unused=(1, 4))
    torch.manual_seed(0)
    dictionary.learn(atoms, sums)
    assert torch.equal(atoms[[1, 4]], before[[1, 4]])
    assert not torch.equal(atoms[0], before[0])
    dictionary.products += 1  # as if the two had been used before
    learned, products = atoms.clone(), dictionary.products.clone()
    assert dictionary.reseed(atoms) == 2
    used = [0, 2, 3, 5]
    assert torch.equal(atoms[used], learned[used])
    assert torch.equal(dictionary.products[used][:, used], products[used][:, used])
    units = torch.nn.functional.normalize(f, dim=1)
    for j in (1, 4):
        torch.testing.assert_close(atoms[j].norm(), torch.tensor(1.0, dtype=torch.float64))
        assert (units @ atoms[j]).max() > 1 - 1e-9  # one of the features
        assert not dictionary.products[j].any() and not dictionary.products[:, j].any()
        assert not dictionary.targets[j].any()
    assert dictionary.used.sum() == 0
    dictionary.used += 1
    assert dictionary.reseed(atoms) == 0


def test_atoms_are_counted_over_all_batches_since_the_last_seeding():
    atoms, dictionary = start(), OnlineDictionary(K, D).double()
    dictionary.learn(atoms, batch_of(atoms, 0, unused=(1, 4))[2])
    dictionary.learn(atoms, batch_of(atoms, 1, unused=(2, 4))[2])
    assert dictionary.used.tolist() == [60, 30, 30, 60, 0, 60]
    assert dictionary.reseed(atoms) == 1


def test_features_that_are_composed_badly_are_drawn():
    atoms = start()
    f = torch.randn(50, D, dtype=torch.float64)
    composed = f.clone()
    composed[[7, 19]] = 0
    sums = CodeSums(atoms)
    sums.add(f, torch.zeros(50, K, dtype=torch.float64), composed)
    drawn = {int((f - each).norm(dim=1).argmin()) for each in sums.candidates}
    assert drawn == {7, 19}


def test_draws_come_from_the_global_generator_and_none_is_drawn_twice():
    f, weights = torch.arange(20.0)[:, None], torch.rand(20)
    torch.manual_seed(5)
    first = draw(f, weights, 8)
    torch.manual_seed(5)
    assert torch.equal(draw(f, weights, 8), first)
    assert len(set(first.flatten().tolist())) == 8
    assert torch.equal(draw(f, torch.zeros(20), 3), torch.zeros(3, 1))
    assert set(draw(f, (f[:, 0] == 4).float(), 3).flatten().tolist()) == {4.0}
