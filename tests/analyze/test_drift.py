import copy

import pytest
import torch
from torch import nn

from peerdg.analyze.cka import cka
from peerdg.analyze.drift import RIDGE, churn, drift, fit_probe, forgetting, geometry
from peerdg.analyze.networks import AnalyzedRun
from peerdg.augment.view import resize
from peerdg.errors import ConfigError
from peerdg.models.classifier import Classifier
from peerdg.run.records import JsonLines
from tests.conftest import tiny_classifier


def moved(model: Classifier, step: float, seed: int) -> Classifier:
    model, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += step * torch.randn(parameter.shape, generator=generator)
    return model


def vector(model: Classifier) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().double()


def test_distances_and_cosines_equal_those_of_the_parameter_vectors():
    networks = [tiny_classifier(batch_norm=True)]
    for seed in range(3):
        networks.append(moved(networks[-1], 0.1, seed))
    result, thetas = geometry(networks), [vector(network) for network in networks]
    way = [theta - thetas[0] for theta in thetas]
    for s in range(4):
        for t in range(4):
            expected = float((thetas[s] - thetas[t]).norm() / thetas[0].norm())
            assert result.distance[s][t] == pytest.approx(expected, abs=1e-6)
            if s and t:
                expected = float(torch.cosine_similarity(way[s], way[t], 0))
                assert result.cosine[s - 1][t - 1] == pytest.approx(expected, abs=1e-6)


def test_layers_are_modules_with_weight_and_bias_and_statistics_do_not_count():
    start = tiny_classifier(batch_norm=True)
    end = copy.deepcopy(start)
    with torch.no_grad():
        end.head.weight.mul_(3)
        end.head.bias.mul_(3)
        end.encoder.norm.running_mean += 5
    layers = geometry([start, end]).layers
    assert set(layers) == {"conv", "norm", "fc", "head"}
    assert layers.pop("head") == pytest.approx([0, 2])
    assert all(values == [0, 0] for values in layers.values())


def test_a_network_that_does_not_move_has_distance_and_cosine_zero():
    result = geometry([tiny_classifier()] * 3)
    assert result.distance == [[0.0] * 3] * 3
    assert result.cosine == [[0.0] * 2] * 2


def test_churn_is_the_share_of_changed_predictions():
    a, b = torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 1, 2])
    assert churn([a, b, b]) == [25, 0]


def test_forgetting_is_the_fall_below_the_best_so_far():
    # The first policy falls from 90 to 70, recovers to 80. The second falls from 60 to 50.
    probe = [[90.0], [70.0, 60.0], [80.0, 50.0, 40.0]]
    assert forgetting(probe) == pytest.approx([0, 10, 20 / 3])
    assert forgetting([[50.0], [60.0, 1.0]]) == [0, 0]


def test_a_probe_is_a_ridge_regression_and_separates_classes_of_unequal_size():
    torch.manual_seed(0)
    labels = torch.tensor([0] * 60 + [1] * 12 + [2] * 12)
    features = 1 + torch.randn(84, 4) + 8 * nn.functional.one_hot(labels, 4)
    weights = fit_probe(features, labels)
    x = torch.cat([features, torch.ones(84, 1)], 1).double()
    penalty = (RIDGE * x.square().sum() / 5).sqrt() * torch.eye(5, dtype=torch.float64)
    y = torch.cat([torch.eye(3, dtype=torch.float64)[labels], torch.zeros(5, 3)])
    assert torch.allclose(weights, torch.linalg.lstsq(torch.cat([x, penalty]), y).solution)
    assert ((x @ weights).argmax(1) == labels).double().mean() > 0.95


def test_a_run_is_measured_from_its_start(runs):
    run = AnalyzedRun(runs["peer"])
    result = drift(run)
    assert result.epochs == [0, 2, 4]
    expected = geometry([run.network(epoch) for epoch in result.epochs])
    assert result.geometry == expected and expected.distance[0][2] > 0
    alike = cka(run.network(0), run.network(4), run.source_images(1000)).diagonal
    assert {layer: values[-1] for layer, values in result.cka.items()} == pytest.approx(alike)
    assert {layer: values[0] for layer, values in result.cka.items()} == pytest.approx(
        dict.fromkeys(alike, 1.0)
    )
    images = run.domains()["paintings"].images
    start, middle = (run.network(epoch)(resize(images, 32)).argmax(1) for epoch in (0, 2))
    assert result.churn["paintings"][0] == 100 * (start != middle).double().mean()
    assert len(result.churn["paintings"]) == 2
    assert result.probe is not None and [len(row) for row in result.probe] == [1, 2]
    assert result.forgetting == forgetting(result.probe)
    assert drift(run, epochs=[4, 0]).epochs == [0, 4]


def test_probes_use_the_policies_that_the_run_trained_with(runs, monkeypatch):
    from peerdg.augment.policy import Policy

    records = JsonLines(runs["peer"] / "metrics.jsonl", "kind").read()
    trained = [r["policy"] for r in records if r["kind"] == "epoch" and r["phase"] == "train"]
    used = []
    redraw = Policy.redraw
    monkeypatch.setattr(Policy, "redraw", lambda s, p: used.append(redraw(s, p)) or used[-1])
    drift(AnalyzedRun(runs["peer"]), max_images=9)
    assert used[-2:] == [trained[1], trained[3]]  # those of the epochs before each snapshot


def test_a_method_without_augmentation_forgets_nothing(runs, monkeypatch):
    run = AnalyzedRun(runs["peer"])
    run.tables = {**run.tables, "peer": {**run.tables["peer"], "augment": False}}
    result = drift(run, max_images=9)
    assert result.probe is None and result.forgetting is None


def test_a_run_without_snapshots_is_refused(runs):
    with pytest.raises(ConfigError, match="--keep-snapshots"):
        drift(AnalyzedRun(runs["plain"]))
