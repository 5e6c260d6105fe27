"""A network with its own class order is trained on data in another: everything goes by name."""

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

COLOURS = {"red": (230, 20, 20), "green": (20, 230, 20), "blue": (20, 20, 230)}
OPTIONS = {
    "method": "randaugment",
    "pretrain": {"epochs": 2, "batch_size": 8, "lr": 0.05},
    "train": {"epochs": 2, "batch_size": 8, "lr": 0.01},
    "augment": {"policy": "fixed", "num_ops": 0},
    "randaugment": {"k": 1},
}


def coloured(name: str, classes: tuple[str, ...], counts: dict[str, int], seed: int) -> Domain:
    """So many noisy squares of each colour, sorted by colour."""
    noise = torch.Generator().manual_seed(seed)
    names = [colour for colour in classes for _ in range(counts.get(colour, 0))]
    base = torch.tensor([COLOURS[colour] for colour in names]).view(-1, 3, 1, 1)
    images = (base + torch.randint(-20, 21, (len(names), 3, 12, 12), generator=noise)).clamp(0, 255)
    labels = torch.tensor([classes.index(colour) for colour in names])
    return Domain(name, classes, images.to(torch.uint8), labels)


def splits() -> Splits:
    return Splits(
        train=coloured("source", ("red", "green", "blue"), dict.fromkeys(COLOURS, 16), 0),
        validation=coloured("held", ("green", "red", "blue"), {"red": 3, "green": 5, "blue": 2}, 1),
        targets={"other": coloured("other", ("red", "blue"), {"red": 7, "blue": 4}, 2)},
    )


def network(*classes: str) -> peerdg.Classifier:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return peerdg.Classifier(TinyEncoder(), torch.nn.Linear(8, len(classes)), classes=classes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    out = tmp_path_factory.mktemp("runs") / "colours"
    return peerdg.fit(splits(), out=out, model=network("blue", "green", "red"), **OPTIONS)


def test_every_colour_is_called_by_its_name(run):
    assert run.accuracy["model"]["validation"] == 100  # else the test says nothing
    for name, colour in COLOURS.items():
        image = np.full((12, 12, 3), colour, np.uint8)
        assert run.model.predict(image).label == name


def test_probabilities_stand_in_the_order_of_the_networks_classes(run):
    assert run.model.classes == ("blue", "green", "red")
    assert json.loads((run.path / "model/model.json").read_text())["classes"] == [
        "blue", "green", "red",
    ]  # fmt: skip
    red = run.model.probabilities([np.full((12, 12, 3), COLOURS["red"], np.uint8)])
    assert int(red.argmax()) == 2


def test_results_by_class_and_the_confusion_matrix_carry_the_right_names(run):
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
    """Ends the process's training as a terminated one would end, at the given step."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self, epoch, step, *, images, terms):
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("steps", [3, 15])
def test_a_stopped_run_goes_on_to_the_same_weights(run, tmp_path: Path, steps: int):
    again = {"out": tmp_path / "run", "model": network("blue", "green", "red"), **OPTIONS}
    with pytest.raises(Stopped):
        peerdg.fit(splits(), progress=StopAfter(steps), **again)
    again["model"] = network("blue", "green", "red")
    peerdg.fit(splits(), existing="resume", **again)
    for name in ("model/model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (run.path / name).read_bytes()


def test_data_read_by_name_is_relabelled_too(tmp_path: Path):
    """The class order of digits-mini is 0 to 9; the network counts down."""
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
    said = run.model.predict(held_out.images)
    names = [held_out.classes[label] for label in held_out.labels]
    right = sum(p.label == name for p, name in zip(said, names, strict=True))
    assert right / len(names) > 0.5
    assert 100 * right / len(names) == pytest.approx(run.accuracy["model"]["validation"])


@pytest.mark.parametrize("classes", [("red", "green", "white"), ("red", "green"), ("a", "b", "c")])
def test_other_classes_are_refused_with_both_lists_before_anything_is_written(
    tmp_path: Path, classes: tuple[str, ...]
):
    with pytest.raises(ConfigError) as refused:
        peerdg.fit(splits(), out=tmp_path / "run", model=network(*classes), **OPTIONS)
    assert ", ".join(classes) in refused.value.message
    assert "red, green, blue" in refused.value.message
    assert not (tmp_path / "run").exists()


def test_a_class_named_twice_is_refused():
    with pytest.raises(ConfigError, match="named twice"):
        network("red", "red")
    with pytest.raises(DataError, match="'red' twice"):
        coloured("source", ("red", "red"), {"red": 2}, 0)
