import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.linalg import sqrtm
from scipy.optimize import linear_sum_assignment, linprog
from scipy.spatial.distance import cdist

from peerdg.analyze.otdd import (
    Sample,
    Settings,
    analyze_otdd,
    draw,
    ground_cost,
    load_embedding,
    otdd,
    sample_distance,
    wasserstein,
)
from peerdg.augment.randaugment import RandAugment
from peerdg.cli.main import run
from peerdg.data.domain import Domain
from peerdg.errors import ConfigError, DataError
from peerdg.model import Model
from tests.cli.stored_models import save_small_model
from tests.conftest import tiny_classifier, tiny_domain

FEW = Settings(samples=15, repeats=2, size=12)


def made_sample(n: int, classes: int, *, d: int = 5, seed: int = 0) -> Sample:
    random = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    x = torch.randn(n, d, generator=random, dtype=torch.float64)
    spread = torch.rand(classes, d, generator=random, dtype=torch.float64) + 0.2
    return Sample(x * spread[y] + 2 * y[:, None] + seed, y)


def shuffled(domain: Domain) -> Domain:
    """The same images in another order, and the same classes with other numbers."""
    order = torch.randperm(len(domain), generator=torch.Generator().manual_seed(1))
    return replace(domain.subset(order), classes=("c", "b", "a"), labels=2 - domain.labels[order])


def plain_wasserstein(p: np.ndarray, q: np.ndarray) -> float:
    """Squared Wasserstein distance of two Gaussians, with covariance matrices."""
    a, b = np.cov(p.T), np.cov(q.T)
    root = sqrtm(a)
    both = np.trace(a + b - 2 * sqrtm(root @ b @ root).real)
    return float(((p.mean(0) - q.mean(0)) ** 2).sum() + both)


def plain_cost(a: Sample, b: Sample, lambda_y: float = 1.0) -> np.ndarray:
    (x, y), (u, v) = ((s.x.numpy(), s.y.numpy()) for s in (a, b))
    w = {
        (i, j): plain_wasserstein(x[y == i], u[v == j])
        for i, j in itertools.product(set(y), set(v))
    }
    classes = np.array([[w[i, j] for j in v] for i in y])
    return cdist(x, u, "sqeuclidean") / 2 + lambda_y * classes / 2


# The distance between two samples.


def test_class_distance_equals_the_formula_with_covariance_matrices():
    p, q = made_sample(40, 1).x, made_sample(30, 1, seed=3).x
    assert wasserstein(p, q) == pytest.approx(plain_wasserstein(p.numpy(), q.numpy()), rel=1e-9)


def test_class_distance_is_finite_with_fewer_images_than_dimensions():
    p, q = made_sample(6, 1, d=50).x, made_sample(4, 1, d=50, seed=1).x
    # The Gaussians lie in a subspace of at most 10 dimensions, where the formula is regular enough.
    basis = torch.linalg.svd(torch.cat([p, q]), full_matrices=False)[2]
    small = [(each @ basis.T).numpy() for each in (p, q)]
    assert wasserstein(p, q) == pytest.approx(plain_wasserstein(*small), rel=1e-5)
    assert wasserstein(p, p) == pytest.approx(0, abs=1e-9)


def test_equals_an_assignment_of_equally_many_images():
    a, b = made_sample(30, 3), made_sample(30, 2, seed=1)
    for lambda_y in (0.0, 1.0, 2.5):
        cost = plain_cost(a, b, lambda_y)
        expected = cost[linear_sum_assignment(cost)].mean()
        assert sample_distance(a, b, lambda_y=lambda_y) == pytest.approx(expected, rel=1e-6)


def test_equals_a_linear_program_with_unequal_numbers_of_images():
    a, b = made_sample(8, 2), made_sample(12, 3, seed=1)
    cost = plain_cost(a, b)
    plan = np.zeros((20, 8, 12))
    for row in range(8):
        plan[row, row] = 1
    for column in range(12):
        plan[8 + column, :, column] = 1
    mass = [1 / 8] * 8 + [1 / 12] * 12
    expected = linprog(cost.ravel(), A_eq=plan.reshape(20, -1), b_eq=mass).fun
    assert sample_distance(a, b) == pytest.approx(expected, rel=1e-6)


def test_two_gaussians_have_the_closed_form():
    n, m, s = 300, 1.5, 0.4
    quantiles = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    x = torch.special.ndtri(quantiles)[:, None]
    y = torch.zeros(n, dtype=torch.int64)
    distance = sample_distance(Sample(x, y), Sample(m + s * x, y))
    assert distance == pytest.approx(m**2 + (1 - s) ** 2, rel=1e-2)


def test_regularized_distance_equals_a_plain_sinkhorn_divergence():
    a, b, reg = made_sample(9, 3), made_sample(12, 2, seed=1), 20.0

    def transport(first: Sample, second: Sample) -> float:
        cost = ground_cost(first, second)
        f, g = torch.zeros(len(first.y)).double(), torch.zeros(len(second.y)).double()
        for _ in range(2000):
            f = -reg * ((g - cost) / reg - np.log(len(g))).logsumexp(1)
            g = -reg * ((f[:, None] - cost) / reg - np.log(len(f))).logsumexp(0)
        return float(f.mean() + g.mean())  # the dual value at the optimum

    expected = transport(a, b) - transport(a, a) / 2 - transport(b, b) / 2
    assert sample_distance(a, b, reg=reg) == pytest.approx(expected, rel=1e-4)
    assert sample_distance(a, a, reg=reg) == pytest.approx(0, abs=1e-9)


def test_grows_with_a_translation():
    a = made_sample(20, 2)
    moved = [sample_distance(a, Sample(a.x + step, a.y)) for step in (0.0, 0.5, 1.0, 2.0)]
    assert moved[0] == pytest.approx(0, abs=1e-9)
    assert moved == sorted(moved)
    # A translation by t costs ½ t² per dimension for images and again for classes.
    assert moved[3] == pytest.approx(a.x.shape[1] * 2.0**2)


def test_a_class_of_one_image_is_a_point():
    a, b = made_sample(4, 4), made_sample(4, 4, seed=1)
    cost = cdist(a.x, b.x, "sqeuclidean")  # half from the images, half from the classes
    expected = cost[linear_sum_assignment(cost)].mean()
    assert sample_distance(a, b) == pytest.approx(expected, rel=1e-9)


# Distances between domains.


def test_a_domain_has_distance_0_to_itself_in_any_order_and_with_other_labels():
    domain = tiny_domain(n=60)
    assert otdd(domain, domain, FEW).values == pytest.approx((0, 0), abs=1e-9)
    assert otdd(domain, shuffled(domain), FEW).values == pytest.approx((0, 0), abs=1e-9)


def test_is_symmetric_and_depends_neither_on_order_nor_on_class_numbers():
    a, b = tiny_domain(n=60), tiny_domain(n=45, seed=4)
    value = otdd(a, b, FEW).values
    assert min(value) > 1
    assert value[0] != value[1]
    assert otdd(b, a, FEW).values == pytest.approx(value, rel=1e-9)
    assert otdd(shuffled(a), b, FEW).values == pytest.approx(value, rel=1e-9)


def test_mean_and_deviation_are_over_the_repeats():
    distance = otdd(tiny_domain(n=60), tiny_domain(n=60, seed=4), replace(FEW, repeats=4))
    assert distance.mean == pytest.approx(np.mean(distance.values))
    assert distance.std == pytest.approx(np.std(distance.values, ddof=1))
    assert otdd(tiny_domain(), tiny_domain(), replace(FEW, repeats=1)).std == 0


def test_rows_are_drawn_in_proportion_to_the_classes():
    labels = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)
    domain = replace(tiny_domain(n=100), labels=labels)
    rows = [draw(domain, 20, seed=0, repeat=repeat) for repeat in range(2)]
    for each in rows:
        assert len(set(each.tolist())) == 20
        assert labels[each].bincount().tolist() == [12, 6, 2]
    assert {*rows[0].tolist()} != {*rows[1].tolist()}
    assert {*draw(domain, 20, seed=1, repeat=0).tolist()} != {*rows[0].tolist()}
    assert sorted(draw(domain, 500, seed=0, repeat=0).tolist()) == list(range(100))


def test_pixels_are_compared_at_one_size_and_in_units_of_white():
    black = Domain(
        "black", ("a",), torch.zeros(3, 3, 8, 8, dtype=torch.uint8), torch.zeros(3).long()
    )
    white = replace(
        black,
        images=torch.full((2, 3, 20, 20), 255, dtype=torch.uint8),
        labels=torch.zeros(2).long(),
    )
    distance = otdd(black, white, Settings(size=4, repeats=1))
    assert distance.mean == pytest.approx(3 * 4 * 4)  # ½ for the images and ½ for the classes
    assert otdd(black, white, Settings(repeats=1)).mean == pytest.approx(3 * 32 * 32)


def test_an_embedding_replaces_pixels_by_features():
    a, b = tiny_domain(n=12), tiny_domain(n=12, seed=4)
    network = tiny_classifier(batch_norm=True).eval()
    samples = [Sample(network.features(d.images).double().detach(), d.labels) for d in (a, b)]
    expected = sample_distance(*samples)
    distance = otdd(a, b, Settings(repeats=1), embedding=Model(network, 12))
    assert distance.mean == pytest.approx(expected, rel=1e-6)


def test_the_network_of_a_model_folder_is_recorded(tmp_path: Path):
    model = load_embedding(str(save_small_model(tmp_path / "model")))
    domains = [tiny_domain("a"), tiny_domain("b", seed=4)]
    analyze_otdd(domains, Settings(repeats=1), embedding=model).save(tmp_path)
    found = json.loads((tmp_path / "otdd.json").read_text())
    assert found["features"]["weights_sha256"] == model.description["weights_sha256"]
    assert (found["d"], found["size"]) == (model.classifier.feature_dim, model.image_size)


def test_images_are_compared_with_their_own_augmented_copies():
    mnist, other = tiny_domain("mnist", n=60), tiny_domain("other", n=30, seed=4)
    augmentations = [RandAugment(k, m) for k in (0, 2) for m in (3, 27)]
    analysis = analyze_otdd([mnist, other], FEW, augmentations=augmentations)
    assert [(d.first, d.second) for d in analysis.pairs] == [("mnist", "other")]
    assert analysis.pairs[0].values == pytest.approx(otdd(mnist, other, FEW).values)
    grid = {policy: d.mean for policy, d in analysis.grid.items()}
    assert grid[0, 3] == grid[0, 27] == pytest.approx(0, abs=1e-9)
    assert 0 < grid[2, 3] < grid[2, 27]
    assert analysis.grid[2, 27].std > 0


def test_all_pairs_are_compared():
    domains = [tiny_domain(name, n=20, seed=seed) for seed, name in enumerate("abcd")]
    analysis = analyze_otdd(domains, FEW)
    pairs = [(d.first, d.second) for d in analysis.distances]
    assert pairs == list(itertools.combinations("abcd", 2))
    for distance in analysis.distances:
        first, second = (domains["abcd".index(n)] for n in (distance.first, distance.second))
        assert distance.values == pytest.approx(otdd(first, second, FEW).values)


def test_a_missing_package_and_a_misspelled_network_are_named(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match="resnet18"):
        load_embedding("resnet81")
    with pytest.raises(DataError, match="runs/none"):
        load_embedding("runs/none")
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(ConfigError, match=r"peerdg\[analyze\]"):
        otdd(tiny_domain(), tiny_domain(), FEW)
    assert peerdg("digits-mini") == 2


# The command.


def peerdg(*arguments: object) -> int:
    return run(["analyze", "otdd", *map(str, arguments)], debug=False)


def test_the_command_writes_values_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    few = ("--samples", 60, "--repeats", 2, "--seed", 3)
    assert peerdg("digits-mini", *few, "-o", tmp_path / "pairs") == 0
    found = json.loads((tmp_path / "pairs/otdd.json").read_text())
    names = ["mnist", "street", "mnist-m", "syn", "uci"]
    assert [(d["first"], d["second"]) for d in found["distances"]] == list(
        itertools.combinations(names, 2)
    )
    facts = {"samples": 60, "seed": 3, "size": 32, "d": 3072, "reg": 0.0, "lambda_y": 1.0}
    assert found.items() >= facts.items()
    assert f"{found['distances'][0]['mean']:.1f}" in capsys.readouterr().out

    grid = ("--augment", "sdg", "--num-ops", "1,3", "--magnitude", "10,20")
    assert peerdg("digits-mini", *few, *grid, "-o", tmp_path / "grid") == 0
    found = json.loads((tmp_path / "grid/otdd.json").read_text())
    policies = [d["policy"] for d in found["distances"]]
    assert policies == [None] * 4 + [[1, 10], [1, 20], [3, 10], [3, 20]]
    assert found["operations"] == "sdg"

    for folder in ("pairs", "grid"):
        with Image.open(tmp_path / folder / "otdd.png") as picture:
            assert picture.width > 900
        assert "<svg" in (tmp_path / folder / "otdd.svg").read_text()


def test_folders_are_compared_and_names_stay_unique(tmp_path: Path):
    random = np.random.default_rng(0)
    for place in ("one/photos", "two/photos"):
        for number, name in enumerate(("cat", "dog", "cat", "dog")):
            file = tmp_path / place / name / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(file)
    folders = (tmp_path / "one/photos", tmp_path / "two/photos")
    assert peerdg(*folders, "-o", tmp_path / "out") == 0
    (pair,) = json.loads((tmp_path / "out/otdd.json").read_text())["distances"]
    assert pair["first"] != pair["second"]
    assert pair["mean"] > 0
    assert peerdg(folders[0], "-o", tmp_path / "out") == 2  # one domain has no pair
    assert peerdg(*folders, "--root", tmp_path) == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["digits-mino"], 2),
        (["no/such/folder"], 5),
        (["digits"], 2),  # no --root
        (["digits-mini", "--samples", 0], 2),
        (["digits-mini", "--augment", "sdg", "--magnitude", 31], 2),
        (["digits-mini", "--embedding", "resnet81"], 2),
    ],
)
def test_bad_input_ends_with_a_message(arguments: list[object], code: int):
    assert peerdg(*arguments) == code
