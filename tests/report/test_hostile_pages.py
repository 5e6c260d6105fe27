"""Every page that is written, with hostile names in every place, read by a Markdown parser."""

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from markdown_it import MarkdownIt
from markdown_it.token import Token

from peerdg.data.domain import Domain
from peerdg.errors import DamagedError
from peerdg.evaluate.detail import evaluate_in_detail
from peerdg.report.comparison import FIGURE, comparison_page, write_comparison
from peerdg.report.evaluation import write_evaluation
from peerdg.report.result import RunResult
from peerdg.run.manifest import Inputs
from peerdg.run.model import model_card
from tests.cli.stored_models import save_small_model
from tests.conftest import tiny_classifier
from tests.report.test_escape import HOSTILE
from tests.report.test_selection_report import run

# The most trusting of renderers: raw HTML and addresses of any kind are let through.
PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
PARSER.validateLink = lambda url: True
SHORT_HOSTILE = [
    "<script>alert(1)</script>",
    "x <img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
    "![x](http://evil.example/x.png)",
    "x\n\n<iframe src=x>\n\n# x",
    "<https://evil.example>",
    "a|b\n|--|",
    "```\n<b>",
    "<!-- x",
    "&lt;b&gt;",
    "$\\frac$",
]


def tokens(page: str) -> Iterator[Token]:
    for token in PARSER.parse(page):
        yield token
        yield from token.children or ()


def active(page: str) -> list[str]:
    """Whatever a reader could click, load or be misled by, beside our own figures."""
    found = []
    for token in tokens(page):
        if token.type in ("html_block", "html_inline", "link_open"):
            found.append(f"{token.type}: {token.content or token.attrs}")
        if token.type == "image" and not re.fullmatch(r"[a-z]+(-\d+)?\.png", token.attrs["src"]):
            found.append(f"image: {token.attrs['src']}")
    return found


def headings(page: str) -> list[str]:
    parsed = PARSER.parse(page)
    return [parsed[n + 1].content for n, token in enumerate(parsed) if token.type == "heading_open"]


def shape(page: str) -> list[tuple[str, int]]:
    """Which blocks there are and how deep, without what they say."""
    return [(token.type, token.level) for token in PARSER.parse(page)]


def test_the_parser_sees_what_is_active():
    for name in SHORT_HOSTILE[:4]:
        assert active(f"Name: {name}")


def with_texts(value: Any, change: Callable[[str], str], keep: tuple[str, ...] = ()) -> Any:
    """`value` with every text in it changed, but for those under the keys `keep`."""
    if isinstance(value, dict):
        return {k: v if k in keep else with_texts(v, change, keep) for k, v in value.items()}
    if isinstance(value, list):
        return [with_texts(item, change, keep) for item in value]
    return change(value) if isinstance(value, str) else value


def hostile_runs(name: str) -> list[RunResult]:
    """Two variants of a method and a second method; every text of config and records is `name`."""
    made = []
    for original in (run(0), run(0, w=0.1), run(0, w=0.3)):
        config = with_texts(original.config, lambda _: name)
        config["other"] = {name: name, "w": original.config["peer"]["w"]}
        config["method"] = "peer" if len(made) < 2 else name
        config[config["method"]] = {**config["peer"], "regularizer": "barlow-twins"}
        records = copy.deepcopy(original.records)
        for record in records:
            if record["domain"] in ("art", "sketch"):
                record["domain"] = f"{record['domain']} {name}"
        profile = {"seconds": 1.0, "stages": {name: {"seconds": 1.0, "calls": 1}}}
        inputs = Inputs(software=(name, f"{name} too"))
        made.append(RunResult(Path(name), config, "done", records, [], profile, inputs=inputs))
    return made


@pytest.mark.parametrize("name", [*SHORT_HOSTILE, *HOSTILE])
def test_a_comparison_has_nothing_active(name: str, tmp_path: Path):
    page = comparison_page(hostile_runs(name), title=name)
    assert active(page) == []
    assert shape(page) == shape(comparison_page(hostile_runs("plain"), title="plain"))


DRAWN = ("<script>alert(1)</script>", "x\n\n<iframe src=x>\n\n# x", "$\\frac$")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in DRAWN else pytest.mark.slow) for n in SHORT_HOSTILE]
)
def test_the_figure_is_drawn_whatever_the_names_are(name: str, tmp_path: Path):
    assert active(write_comparison(hostile_runs(name), tmp_path, title=name).read_text()) == []
    assert (tmp_path / FIGURE).stat().st_size > 10_000


@pytest.mark.parametrize("name", SHORT_HOSTILE)
def test_an_evaluation_has_nothing_active(name: str, tmp_path: Path):
    classes = (name, f"b {name}", "c")
    images = torch.randint(0, 256, (9, 3, 12, 12), dtype=torch.uint8)
    labels = torch.arange(9) % 2  # the third class is missing, which is remarked
    paths = tuple(f"{name}/{number}.png" for number in range(9))
    domain = Domain(f"{name}.", classes, images, labels, paths=paths)
    model = tiny_classifier()
    model.classes = classes
    detail = evaluate_in_detail(model, domain)
    page = write_evaluation([detail], {domain.name: domain}, tmp_path, title=name).read_text()
    assert active(page) == []
    assert len(headings(page)) == 3 if detail.worst else 2


@pytest.mark.parametrize("name", SHORT_HOSTILE)
def test_a_card_has_nothing_active_whatever_the_description_says(name: str, tmp_path: Path):
    folder = save_small_model(tmp_path / "model")
    described = json.loads((folder / "model.json").read_text())
    described["training"] = {
        "data": "own-data", "source": "photos", "images": {"train": 5}, "fingerprint": "f",
        "method": "peer", "weights": "none", "budget": "quick", "seed": 0,
        "settings": {"peer.w": 2.0, name: name}, "selection": "last",
        "accuracy": {name: {"accuracy": 50.0, "n": 2}},
        "calibration": {"error": 0.1, "bins": 15, "n": 9},
    }  # fmt: skip
    card = model_card(with_texts(described, lambda _: name))
    assert active(card) == []
    plain = model_card(with_texts(described, lambda _: "plain").copy() | {"classes": ["plain"] * 3})
    assert len(headings(card)) == len(headings(plain)) == 7
    for place in (("image_size",), ("stored_size",), ("training", "seed"),
                  ("training", "calibration", "bins")):  # fmt: skip
        changed = copy.deepcopy(described)
        inner = changed
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = name
        try:
            assert active(model_card(changed)) == [], place
        except DamagedError:
            pass  # refused, which is as good


def test_a_line_that_loads_the_model_cannot_leave_its_block(tmp_path: Path):
    folder = save_small_model(tmp_path / "model")
    described = json.loads((folder / "model.json").read_text())
    card = model_card(described, load=["net = load('x\n```\n<script>')"])
    assert active(card) == []
