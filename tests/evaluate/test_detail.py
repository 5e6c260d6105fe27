import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from peerdg.evaluate import accuracy
from peerdg.evaluate.accuracy import calibration, class_results, evaluate_domain, evaluate_in_detail
from tests.conftest import tiny_classifier, tiny_domain


def test_counts_equal_a_plain_loop_over_images(monkeypatch):
    monkeypatch.setattr(accuracy, "images_per_pass", lambda side: 7)
    model, domain = tiny_classifier(classes=4).eval(), tiny_domain(n=30, classes=4)
    confusion = np.zeros((4, 4), int)
    loss = 0.0
    for image, label in zip(domain.images, domain.labels, strict=True):
        logits = model(image[None]).detach()
        confusion[label, logits.argmax()] += 1
        loss += float(F.cross_entropy(logits, label[None]))
    result = evaluate_in_detail(model, domain)
    assert result.confusion.tolist() == confusion.tolist()
    assert result.loss == pytest.approx(loss / 30, abs=1e-5)
    assert result.n == 30
    assert [c.n for c in result.classes] == confusion.sum(1).tolist()
    assert [c.correct for c in result.classes] == confusion.diagonal().tolist()
    assert [c.predicted for c in result.classes] == confusion.sum(0).tolist()
    expected = np.mean(100 * confusion.diagonal() / confusion.sum(1))
    assert result.class_accuracy == pytest.approx(expected)


def test_agrees_with_the_evaluation_of_training_and_leaves_the_mode():
    model, domain = tiny_classifier(batch_norm=True, dropout=0.5).train(), tiny_domain()
    result, record = evaluate_in_detail(model, domain), evaluate_domain(model, domain)
    assert (result.n, result.correct, result.accuracy) == (
        record["n"], record["correct"], record["accuracy"],
    )  # fmt: skip
    assert result.loss == pytest.approx(record["loss"], rel=1e-6)
    assert model.training


def test_the_worst_mistakes_are_the_most_confident_ones():
    model, domain = tiny_classifier().eval(), tiny_domain(n=40, seed=3)
    with torch.no_grad():
        model.head.bias[1] += 2  # so that there are mistakes of all sizes
        shares = model(domain.images).softmax(1)
    wrong = [
        (float(row.max()), index)
        for index, row in enumerate(shares)
        if row.argmax() != domain.labels[index]
    ]
    assert len(wrong) > 5
    expected = [index for _, index in sorted(wrong, key=lambda pair: (-pair[0], pair[1]))][:5]
    result = evaluate_in_detail(model, domain, worst=5).worst
    assert [mistake.row for mistake in result] == expected
    for mistake in result:
        row = shares[mistake.row]
        assert mistake.predicted == model.classes[int(row.argmax())] != mistake.true
        assert mistake.true == domain.classes[int(domain.labels[mistake.row])]
        assert mistake.probability == pytest.approx(float(row.max()), abs=1e-6)
        true = float(row[domain.labels[mistake.row]])
        assert mistake.true_probability == pytest.approx(true, abs=1e-6)


def test_confused_with_is_the_largest_entry_off_the_diagonal():
    confusion = torch.tensor([[9, 1, 3], [0, 4, 0], [2, 2, 0]])
    result = class_results(("a", "b", "c"), confusion)
    assert [c.confused_with for c in result] == ["c", None, "a"]


def test_everything_can_be_written_as_json():
    result = evaluate_in_detail(tiny_classifier(), tiny_domain())
    assert json.loads(json.dumps(result.to_dict())) == result.to_dict()


def test_a_bin_holds_the_means_of_its_images_and_its_upper_edge():
    confidence = torch.tensor([0.25, 0.5, 0.375, 0.75, 1.0, 0.875], dtype=torch.float64)
    correct = torch.tensor([True, False, True, False, True, True])
    result = calibration(confidence, correct, bins=4)
    assert [tuple(part.values()) for part in result.bins] == [
        (0.0, 0.25, 1, 0.25, 1.0),
        (0.25, 0.5, 2, (0.5 + 0.375) / 2, 0.5),
        (0.5, 0.75, 1, 0.75, 0.0),
        (0.75, 1.0, 2, (1.0 + 0.875) / 2, 1.0),
    ]
    empty = calibration(confidence[:1], correct[:1], bins=4).bins[3]
    assert (empty["n"], empty["confidence"], empty["accuracy"]) == (0, None, None)


def test_a_class_without_images_is_missing_and_does_not_count_in_the_mean():
    confusion = torch.tensor([[3, 1, 0], [0, 0, 0], [1, 0, 1]])
    classes = class_results(("a", "b", "c"), confusion)
    result = replace(
        evaluate_in_detail(tiny_classifier(), tiny_domain()), classes=classes, confusion=confusion
    )
    assert [c.accuracy for c in classes] == [75.0, None, 50.0]
    assert result.class_accuracy == 62.5
    assert result.accuracy == pytest.approx(100 * 4 / 6)
    assert result.missing == ["b"]


@given(st.lists(st.tuples(st.floats(0, 1, width=32), st.booleans()), min_size=1, max_size=60))
def test_calibration_equals_the_definition_bin_by_bin(answers):
    bins = 15
    error = 0.0
    for m in range(bins):
        low, high = m / bins, (m + 1) / bins
        inside = [(c, r) for c, r in answers if low < c <= high or (m == 0 and c == 0)]
        if inside:
            sure, right = np.mean([c for c, _ in inside]), np.mean([r for _, r in inside])
            error += len(inside) / len(answers) * abs(right - sure)
    confidence = torch.tensor([c for c, _ in answers], dtype=torch.float64)
    result = calibration(confidence, torch.tensor([r for _, r in answers]), bins=bins)
    assert result.error == pytest.approx(error, abs=1e-9)
    assert sum(part["n"] for part in result.bins) == len(answers)
    assert len(result.bins) == bins
