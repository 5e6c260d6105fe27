import copy

import pytest
import torch
from torch import Tensor, nn

from peerdg.analyze.connectivity import LinearPath, connectivity, pairwise
from peerdg.data.domain import Domain
from peerdg.errors import ConfigError
from peerdg.evaluate.accuracy import evaluate_domain
from peerdg.methods.clean import CleanImages
from peerdg.models.classifier import Classifier
from peerdg.models.statistics import recompute_statistics
from tests.conftest import tiny_classifier, tiny_domain

DOMAINS = {"validation": tiny_domain(n=30), "one": tiny_domain("one", n=21, seed=4)}


class Flat(nn.Module):
    """Pixel means, so that a classifier on top is a logistic regression."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def logistic(seed: int) -> Classifier:
    torch.manual_seed(seed)
    return Classifier(Flat(), nn.Linear(3, 3), classes=tuple("abc"))


def path(accuracy: tuple[float, ...], loss: tuple[float, ...] = (0.0, 0.0, 0.0)) -> LinearPath:
    return LinearPath((0.0, 0.5, 1.0), {"one": accuracy}, {"one": loss}, 1.0)


def test_equal_ends_have_a_constant_path_without_barrier():
    model = tiny_classifier()
    result = connectivity(model, copy.deepcopy(model), DOMAINS, points=5)
    for domain in DOMAINS:
        assert len(set(result.accuracy[domain])) == 1
        assert result.summary(domain) == pytest.approx(dict.fromkeys(result.summary(domain), 0))
    assert result.distance == 0


def test_the_ends_are_the_given_networks_and_the_middle_is_their_mean():
    a, b = tiny_classifier(seed=0), tiny_classifier(seed=1)
    result = connectivity(a, b, DOMAINS, points=3)
    middle = copy.deepcopy(a)
    with torch.no_grad():
        for p, q in zip(middle.parameters(), b.parameters(), strict=True):
            p.copy_((p + q) / 2)
    for number, network in enumerate((b, middle, a)):
        for name, domain in DOMAINS.items():
            expected = evaluate_domain(network, domain)
            assert result.accuracy[name][number] == expected["accuracy"]
            assert result.loss[name][number] == pytest.approx(expected["loss"], abs=1e-6)
    vectors = [nn.utils.parameters_to_vector(each.parameters()).detach() for each in (a, b)]
    assert result.distance == pytest.approx(float((vectors[0] - vectors[1]).norm()), rel=1e-5)


def test_swapping_the_ends_mirrors_the_path():
    a, b = tiny_classifier(seed=0), tiny_classifier(seed=1)
    there, back = (connectivity(*ends, DOMAINS, points=5) for ends in ((a, b), (b, a)))
    assert there.loss["one"] == pytest.approx(back.loss["one"][::-1], abs=1e-5)
    assert there.alphas == (0.0, 0.25, 0.5, 0.75, 1.0)


def test_a_convex_problem_has_no_loss_barrier_above_the_line():
    result = connectivity(logistic(0), logistic(1), DOMAINS, points=9)
    for domain in DOMAINS:
        assert result.barrier(domain, of="loss", linear=True) == pytest.approx(0, abs=1e-6)


def test_permuted_hidden_units_have_a_barrier():
    torch.manual_seed(0)
    a = tiny_classifier()
    with torch.no_grad():
        a.encoder.fc.weight.mul_(20)
        a.head.weight.mul_(20)
    labels = torch.cat([a(x).argmax(1) for x in (DOMAINS["one"].images,)])
    domains = {"one": Domain("one", a.classes, DOMAINS["one"].images, labels)}
    b, order = copy.deepcopy(a), torch.randperm(8)
    with torch.no_grad():  # the same function, in another basin
        b.encoder.fc.weight.copy_(a.encoder.fc.weight[order])
        b.encoder.fc.bias.copy_(a.encoder.fc.bias[order])
        b.head.weight.copy_(a.head.weight[:, order])
    result = connectivity(a, b, domains)
    assert result.accuracy["one"][0] == result.accuracy["one"][-1] == 100
    assert result.barrier("one", of="loss") > 0.1


def test_barriers_and_gain_follow_their_definitions():
    made = path((60.0, 50.0, 80.0), (1.0, 2.0, 0.5))
    assert made.gain("one") == -20
    assert made.barrier("one") == 20  # error 50 at the middle, 40 and 20 at the ends
    assert made.barrier("one", linear=True) == 20
    assert made.barrier("one", of="loss") == 1.25
    better = path((60.0, 75.0, 80.0))
    assert better.gain("one") == 5
    assert better.barrier("one") == 10 and better.barrier("one", linear=True) == 0


def test_the_mean_of_targets_leaves_out_the_source():
    made = LinearPath(
        (0.0, 0.5, 1.0),
        {
            "source (train)": (0, 90, 0),
            "validation": (0, 60, 0),
            "one": (0, 4, 0),
            "two": (0, 8, 0),
        },
        dict.fromkeys(("source (train)", "validation", "one", "two"), (0.0, 0.0, 0.0)),
        1.0,
    )
    assert made.target_mean["gain"] == 6
    assert path((0.0, 3.0, 0.0)).target_mean["gain"] == 3


def test_batch_statistics_are_those_of_clean_images_at_every_point():
    a, b = (tiny_classifier(seed=seed, batch_norm=True) for seed in (0, 1))
    clean = CleanImages(tiny_domain(n=40, seed=9).images)
    result = connectivity(a, b, DOMAINS, points=3, clean=clean)
    middle = copy.deepcopy(a)
    with torch.no_grad():
        for p, q in zip(middle.parameters(), b.parameters(), strict=True):
            p.copy_((p + q) / 2)
    for network in (a, b, middle):
        before = {name: buffer.clone() for name, buffer in network.named_buffers()}
        assert all(torch.equal(before[name], x) for name, x in network.named_buffers())
        recompute_statistics(network, clean)
    for number, network in enumerate((b, middle, a)):
        expected = evaluate_domain(network, DOMAINS["one"])
        assert result.loss["one"][number] == pytest.approx(expected["loss"], abs=1e-6)
    again = connectivity(a, b, DOMAINS, points=3, clean=clean)
    assert again.loss == result.loss  # ends with these statistics stay as they are
    without = connectivity(a, b, DOMAINS, points=3)
    assert without.loss["one"][0] == pytest.approx(result.loss["one"][0], abs=1e-6)
    assert without.loss["one"][1] != pytest.approx(result.loss["one"][1], abs=1e-3)


def test_the_networks_are_not_changed():
    a, b = (tiny_classifier(seed=seed, batch_norm=True) for seed in (0, 1))
    before = [copy.deepcopy(each.state_dict()) for each in (a, b)]
    connectivity(a, b, DOMAINS, points=3, clean=CleanImages(DOMAINS["one"].images))
    for network, state in zip((a, b), before, strict=True):
        assert all(torch.equal(state[name], value) for name, value in network.state_dict().items())


def test_all_pairs_have_a_path():
    networks = {f"{seed}": tiny_classifier(seed=seed) for seed in range(3)}
    paths = pairwise(networks, DOMAINS, points=3)
    assert list(paths) == [("0", "1"), ("0", "2"), ("1", "2")]
    alone = connectivity(networks["0"], networks["2"], DOMAINS, points=3)
    assert paths["0", "2"] == alone
    with pytest.raises(ConfigError, match="two different networks"):
        pairwise({"0": networks["0"]}, DOMAINS)


@pytest.mark.parametrize("points", [1, 4, 0])
def test_a_path_without_middle_is_refused(points: int):
    model = tiny_classifier()
    with pytest.raises(ConfigError, match="middle"):
        connectivity(model, model, DOMAINS, points=points)


def test_networks_with_other_classes_or_layers_are_refused():
    model = tiny_classifier()
    with pytest.raises(ConfigError, match="classes"):
        connectivity(model, tiny_classifier(classes=2), DOMAINS)
    with pytest.raises(ConfigError, match="layers"):
        connectivity(model, tiny_classifier(batch_norm=True), DOMAINS)
