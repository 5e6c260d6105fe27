"""Train a network on data with another class order. Classes are matched by name."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

import peerdg
from peerdg.data.domain import Domain
from peerdg.data.splits import Splits
from peerdg.errors import ConfigError, DataError, Stopped
from peerdg.run.progress import ProgressDisplay
from tests.conftest import TinyEncoder

COLORS = {"red": (230, 20, 20), "green": (20, 230, 20), "blue": (20, 20, 230)}
OPTIONS = {
    "method": "randaugment",
    "pretrain": {"epochs": 2, "batch_size": 8, "lr": 0.05},
    "train": {"epochs": 2, "batch_size": 8, "lr": 0.01},
    "augment": {"policy": "fixed", "num_ops": 0},
    "randaugment": {"k": 1},
}


def colored(name: str, classes: tuple[str, ...], counts: dict[str, int], seed: int) -> Domain:
    """Noisy squares, the same number of each color, sorted by color."""
    noise = torch.Generator().manual_seed(seed)
    names = [color for color in classes for _ in range(counts.get(color, 0))]
    base = torch.tensor([COLORS[color] for color in names]).view(-1, 3, 1, 1)
    images = (base + torch.randint(-20, 21, (len(names), 3, 12, 12), generator=noise)).clamp(0, 255)
    labels = torch.tensor([classes.index(color) for color in names])
    return Domain(name, classes, images.to(torch.uint8), labels)


def splits() -> Splits:
    return Splits(
        train=colored("source", ("red", "green", "blue"), dict.fromkeys(COLORS, 16), 0),
        validation=colored("held", ("green", "red", "blue"), {"red": 3, "green": 5, "blue": 2}, 1),
        targets={"other": colored("other", ("red", "blue"), {"red": 7, "blue": 4}, 2)},
    )


def network(*classes: str) -> peerdg.Classifier:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return peerdg.Classifier(TinyEncoder(), torch.nn.Linear(8, len(classes)), classes=classes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    out = tmp_path_factory.mktemp("runs") / "colors"
    return peerdg.fit(splits(), out=out, model=network("blue", "green", "red"), **OPTIONS)


def test_every_color_is_predicted_by_name(run):
    assert run.accuracy["model"]["validation"] == 100  # otherwise the test shows nothing
    for name, color in COLORS.items():
        image = np.full((12, 12, 3), color, np.uint8)
        assert run.model.predict(image).label == name


def test_probabilities_follow_the_order_of_the_networks_classes(run):
    assert run.model.classes == ("blue", "green", "red")
    assert json.loads((run.path / "model/model.json").read_text())["classes"] == [
        "blue", "green", "red",
    ]  # fmt: skip
    red = run.model.probabilities([np.full((12, 12, 3), COLORS["red"], np.uint8)])
    assert int(red.argmax()) == 2


def test_results_by_class_have_the_right_names(run):
    for domain, counts in (
        (splits().validation, {"red": 3, "green": 5, "blue": 2}),
        (splits().targets["other"], {"red": 7, "green": 0, "blue": 4}),
    ):
        detail = run.model.evaluate_in_detail(domain)
        assert {c.name: (c.n, c.correct) for c in detail.classes} == {
            name: (n, n) for name, n in counts.items()
        }
        expected = torch.diag(torch.tensor([counts[name] for name in ("blue", "green", "red")]))
        assert torch.equal(detail.confusion, expected)


class StopAfter(ProgressDisplay):
    """Stop the training at the given step, as a terminated process would."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self, epoch, step, *, images, terms):
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("steps", [3, 15])
def test_a_stopped_run_resumes_to_the_same_weights(run, tmp_path: Path, steps: int):
    again = {"out": tmp_path / "run", "model": network("blue", "green", "red"), **OPTIONS}
    with pytest.raises(Stopped):
        peerdg.fit(splits(), progress=StopAfter(steps), **again)
    again["model"] = network("blue", "green", "red")
    peerdg.fit(splits(), existing="resume", **again)
    for name in ("model/model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (run.path / name).read_bytes()


def test_named_data_is_relabeled(tmp_path: Path):
    """The class order of digits-mini is 0 to 9. The network counts down."""
    down = tuple(reversed("0123456789"))
    model = peerdg.build_classifier("digits-cnn-half", classes=down)
    run = peerdg.fit(
        "digits-mini", out=tmp_path / "run", model=model, method="erm", targets=["uci"],
        pretrain={"epochs": 0}, train={"epochs": 2, "batch_size": 32, "lr": 1e-3}, crafted="off",
        **{"digits-mini": {"train": 500}},
    )  # fmt: skip
    from peerdg.data.benchmarks import DigitsMiniSettings, benchmark

    data = benchmark("digits-mini").load(DigitsMiniSettings(train=500), root=None, targets=["uci"])
    held_out = data.validation
    predictions = run.model.predict(held_out.images)
    names = [held_out.classes[label] for label in held_out.labels]
    right = sum(p.label == name for p, name in zip(predictions, names, strict=True))
    assert right / len(names) > 0.5
    assert 100 * right / len(names) == pytest.approx(run.accuracy["model"]["validation"])


@pytest.mark.parametrize("classes", [("red", "green", "white"), ("red", "green"), ("a", "b", "c")])
def test_error_for_other_classes_names_both_lists_before_writing(
    tmp_path: Path, classes: tuple[str, ...]
):
    with pytest.raises(ConfigError) as refused:
        peerdg.fit(splits(), out=tmp_path / "run", model=network(*classes), **OPTIONS)
    assert ", ".join(classes) in refused.value.message
    assert "red, green, blue" in refused.value.message
    assert not (tmp_path / "run").exists()


def test_a_class_named_twice_is_rejected():
    with pytest.raises(ConfigError, match="unique"):
        network("red", "red")
    with pytest.raises(DataError, match="'red' is listed twice"):
        colored("source", ("red", "red"), {"red": 2}, 0)
