"""Measuring in advance changes nothing of a run, and measures what the run does."""

import io
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import peerdg
from peerdg.methods.registry import method_names
from peerdg.models.classifier import Classifier
from peerdg.models.stored import load_stored
from peerdg.run.build import adapt_network
from peerdg.run.config import resolve
from peerdg.run.forecast import Costs
from peerdg.run.plan import measure_run_costs
from peerdg.run.progress import ConsoleProgress, Silent
from peerdg.train.source import Source
from tests.conftest import TinyEncoder, tiny_classifier, tiny_domain, tiny_splits
from tests.methods.tiny import TINY
from tests.reliability.tiny_run import OPTIONS

METHODS = method_names()


def measured(model: Classifier, options: dict[str, Any], images: int = 96) -> Costs:
    config = resolve({"benchmark": "own-data", "backbone": "own"}, options)
    source = Source(tiny_domain(n=images))
    domains = {"validation": tiny_domain(n=40), "one": tiny_domain("one", n=60)}
    network = adapt_network(config, model, "pretrain", source.size)  # as a run does before
    costs = measure_run_costs(config, network, source, domains)
    assert costs is not None
    return costs


def options_of(method: str) -> dict[str, Any]:
    common = {key: OPTIONS[key] for key in ("pretrain", "train", "threads")}
    tiny = TINY.get(method, {})
    return {**common, "method": method, **({method: tiny} if tiny else {})}


@pytest.mark.filterwarnings("ignore:The 3 domains of k")  # of a method's tiny settings
@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_was_measured_in_advance_is_the_same_to_the_last_bit(
    tmp_path: Path, method: str
):
    """Batch normalisation, dropout and momentum are in it; torch's generator is used by dropout."""
    found = []
    for progress in (Silent(), ConsoleProgress(Console(file=io.StringIO()))):
        torch.manual_seed(5)
        out = tmp_path / type(progress).__name__
        model = tiny_classifier(batch_norm=True, dropout=0.2)
        run = peerdg.fit(
            tiny_splits(), out=out, model=model, progress=progress, **options_of(method)
        )
        weights = {k: v.clone() for k, v in run.model.classifier.state_dict().items()}
        found.append(((out / "metrics.jsonl").read_bytes(), weights, torch.rand(3)))
    (records, weights, next_draw), (records_after, weights_after, next_draw_after) = found
    assert records == records_after
    assert weights.keys() == weights_after.keys()
    assert all(torch.equal(weights[name], weights_after[name]) for name in weights)
    assert torch.equal(next_draw, next_draw_after)


@pytest.mark.parametrize("method", METHODS)
def test_the_network_is_left_as_it_is(method: str):
    model = tiny_classifier(batch_norm=True, dropout=0.2).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    measured(model, options_of(method))
    assert not model.training
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


class Slow(torch.nn.Module):
    """Takes a known time for each image, whatever is done with it; counts them."""

    SECONDS = 0.001
    images = 0

    def __init__(self) -> None:
        super().__init__()
        self.encoder = TinyEncoder()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Slow.images += len(x)
        time.sleep(self.SECONDS * len(x))
        return self.encoder(x)


def slow_classifier() -> Classifier:
    return Classifier(Slow(), torch.nn.Linear(8, 3), classes=("a", "b", "c"))


def test_costs_are_those_of_the_images_that_go_through_the_network():
    """Sleeping is never shorter than asked for; how much longer is left open."""
    batch = OPTIONS["train"]["batch_size"]
    peer, erm = (measured(slow_classifier(), options_of(m)) for m in ("peer", "erm"))
    for costs in (peer, erm):
        assert costs.phases["pretrain"].step >= Slow.SECONDS * batch
    assert erm.phases["train"].step >= Slow.SECONDS * batch
    assert peer.phases["train"].step >= Slow.SECONDS * 2 * batch  # both views
    # The task model's features of all 96 images, once in a period.
    assert peer.phases["train"].period >= Slow.SECONDS * 96
    # 100 images by each observed model; 40 at the end by the deployed one.
    assert erm.evaluation >= Slow.SECONDS * 100
    assert peer.evaluation >= Slow.SECONDS * 200
    assert peer.finish >= Slow.SECONDS * 40


def test_steps_are_measured_as_they_are_once_images_were_added():
    """M-ADA's steps then have a batch of the source and one of what was made."""
    batch = OPTIONS["train"]["batch_size"]
    options = options_of("m-ada")
    options["train"] = {**options["train"], "epochs": 3}
    costs = measured(slow_classifier(), options).phases["train"]
    assert costs.step >= Slow.SECONDS * 2 * batch
    assert costs.growth >= Slow.SECONDS * 96 * 4  # features of the start, and three steps


def test_measuring_takes_a_small_part_of_a_long_run():
    """An epoch would be 2,000 images; far fewer are looked at, and a large batch not at all."""
    Slow.images = 0
    options = options_of("peer")
    options["train"] = {**options["train"], "batch_size": 512}
    options["pretrain"] = {**options["pretrain"], "batch_size": 512}
    costs = measured(slow_classifier(), options, images=4000)
    assert Slow.images < 4000
    assert costs.phases["train"].step >= 0.8 * Slow.SECONDS * 2 * 512  # scaled from small steps
    assert costs.phases["train"].period >= Slow.SECONDS * 4000


class Heavy(TinyEncoder):
    """Takes the same time for any number of images, like an optimizer with many weights."""

    SECONDS = 0.6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.SECONDS)
        return super().forward(x)


def test_what_every_step_takes_is_not_multiplied_by_the_size_of_the_batch():
    """A step is too long here for a full batch to be tried: its time follows from small ones."""
    model = Classifier(Heavy(), torch.nn.Linear(8, 3), classes=("a", "b", "c"))
    options = options_of("erm")
    options["train"] = {**options["train"], "batch_size": 32}
    costs = measured(model, options)
    # Four times the time of eight images if it were in proportion; half of that is the most that
    # the estimate makes of a part of unknown size.
    assert costs.phases["train"].step < 4 * Heavy.SECONDS


def test_a_network_that_cannot_be_copied_is_trained_without_an_estimate(tmp_path: Path):
    class Uncopied(TinyEncoder):
        def __deepcopy__(self, memo: dict) -> "Uncopied":
            raise TypeError("one of a kind")

    model = Classifier(Uncopied(), torch.nn.Linear(8, 3), classes=("a", "b", "c"))
    text = io.StringIO()
    progress = ConsoleProgress(Console(file=text))
    out = tmp_path / "run"
    peerdg.fit(tiny_splits(), out=out, model=model, progress=progress, **options_of("erm"))
    assert load_stored(out / "model", tiny_classifier())[1]["classes"] == ["a", "b", "c"]
    assert "in all" not in text.getvalue()
