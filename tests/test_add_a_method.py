"""The method of docs/add-a-method.md has the documented loss and can be trained."""

import re
from pathlib import Path

import pytest
import torch

import peerdg
from peerdg.augment.policy import Policy
from peerdg.methods.base import Batch
from peerdg.run.config import plugin_method
from tests.conftest import tiny_classifier, tiny_domain, tiny_splits
from tests.test_readme import ROOT, blocks

PAGE = ROOT / "docs/add-a-method.md"


@pytest.fixture
def agree(tmp_path: Path) -> Path:
    file = tmp_path / "agree.py"
    file.write_text(blocks("<!-- executed by tests/test_add_a_method.py -->", page=PAGE))
    return file


def test_the_page_adds_an_objective_in_under_40_lines(agree: Path):
    assert len(agree.read_text().splitlines()) < 40


def test_its_loss_equals_the_documented_equation(agree: Path):
    model, domain = tiny_classifier(), tiny_domain(n=6)
    x_bar = domain.images.flip(3)
    batch = Batch(domain.images, domain.labels, augmented=x_bar)
    with plugin_method(agree) as plugin:
        settings = plugin.module.Settings(w=0.3)
        loss = plugin.module.Agree(model, settings, augment=Policy()).loss(batch)["loss"]
    p, q = (model(images).softmax(1) for images in (domain.images, x_bar))
    rows = torch.arange(6)
    ce = -(p[rows, domain.labels].log().mean() + q[rows, domain.labels].log().mean())
    kl = (p * (p / q).log()).sum(1).mean()
    torch.testing.assert_close(loss, ce + 0.3 * kl)


def test_it_trains_from_python(agree: Path, tmp_path: Path):
    run = peerdg.fit(
        tiny_splits(), out=tmp_path / "run", model=tiny_classifier(), plugin=agree,
        agree={"w": 0.5, "k": 1}, pretrain={"epochs": 0}, train={"epochs": 2, "batch_size": 8},
        crafted="off",
    )  # fmt: skip
    assert run.config.method == "agree" and run.config.method_settings.w == 0.5
    epochs = [record for record in run.records if record["kind"] == "epoch"]
    assert [record["disagreement"] > 0 for record in epochs] == [True, True]
    assert len({str(record["policy"]) for record in epochs}) == 2  # drawn again with k = 1


def test_every_file_named_on_the_page_exists():
    text = PAGE.read_text()
    named = set(re.findall(r"`((?:methods|models)/\w+\.py)`", text))
    assert len(named) > 5
    assert all((ROOT / "src/peerdg" / name).is_file() for name in named)
