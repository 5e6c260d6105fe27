"""HTML pages: what they show, that nothing in a name acts, and that they stay small."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import peerdg
from peerdg.data.domain import Domain
from peerdg.errors import ConfigError
from peerdg.evaluate.accuracy import evaluate_in_detail
from peerdg.evaluate.statistics import wilson
from peerdg.models.classifier import Classifier
from peerdg.report.card import card_rows, domain_details
from peerdg.report.curves import POINTS, curves
from peerdg.report.html import forest, page_file
from peerdg.report.pages import look_closer, write_evaluation_page, write_runs_page
from peerdg.report.runs import as_of, load_runs, read_run, save_runs
from peerdg.report.table import make_table
from tests.conftest import TinyEncoder, tiny_classifier, tiny_domain, tiny_splits
from tests.report.made import GROUPS, SERIES, level, peer
from tests.report.test_escape import HOSTILE
from tests.report.test_page import SHORT_HOSTILE, hostile_runs


class Page(HTMLParser):
    """The elements of a page, and the text in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.inside = "", {"script": [], "style": []}
        self.current = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.current = tag
        if tag in self.inside:
            self.inside[tag].append("")

    def handle_endtag(self, tag):
        self.current = ""

    def handle_data(self, data):
        if self.current in self.inside:
            self.inside[self.current][-1] += data
        else:
            self.text += data

    @property
    def data(self):
        return json.loads(self.inside["script"][0])


def page_of(path: Path) -> Page:
    return Page(path.read_text("utf-8"))


def addresses(page: Page) -> Iterator[str]:
    for _, attributes in page.elements:
        for name, value in attributes.items():
            assert not name.startswith("on") and name != "style"
            if name in ("src", "href", "action", "srcset", "data"):
                yield value or ""


def test_nothing_in_a_name_acts(tmp_path):
    """The elements of the page are the same, whatever the runs are called."""
    plain = page_of(write_runs_page(hostile_runs("plain"), tmp_path / "a.html", title="plain"))
    for name in [*SHORT_HOSTILE, *HOSTILE]:
        page = page_of(write_runs_page(hostile_runs(name), tmp_path / "b.html", title=name))
        assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements], name
        assert all(address.startswith("data:image/") for address in addresses(page))
        said = page.text + json.dumps(page.data, ensure_ascii=False)
        assert not re.search("[\x1b\u202e\r]", said)


def test_the_policy_allows_only_what_is_in_the_page(tmp_path):
    page = page_of(write_runs_page([peer()], tmp_path / "page.html"))
    (policy,) = (a["content"] for _, a in page.elements if "http-equiv" in a)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'" and rules["connect-src"] == "'none'"

    def hashes(texts: list[str]) -> set[str]:
        digests = (hashlib.sha256(text.encode()).digest() for text in texts)
        return {f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests}

    assert set(rules["script-src"].split()) == hashes(page.inside["script"][1:])
    assert set(rules["style-src"].split()) == hashes(page.inside["style"])


def test_the_curves_are_those_of_the_records():
    data = curves({"peer": [peer(), peer(1)]})
    assert data["x"] == [1, 2, 3]
    titles = [chart["title"] for chart in data["charts"]]
    assert titles[:2] == ["art", "sketch"] and len(titles) == 4
    for chart, domain in zip(data["charts"][:2], ("art", "sketch"), strict=True):
        shown = {(s["seed"], s["network"]): s["y"] for s in chart["series"]}
        for seed in (0, 1):
            assert shown[seed, "task"] == SERIES[domain][seed]
            assert shown[seed, "proxy"] == [1.0] * 3
        assert all(s["deployed"] == (s["network"] == "task") for s in chart["series"])
    crafted = next(s for s in data["charts"][2]["series"] if s["deployed"])
    assert crafted["y"] == [50, 40, 30]  # without color, which is like the training augmentation


def test_a_long_run_is_thinned_and_keeps_its_last_epoch():
    data = curves({"erm": [level("erm", 0, epochs=1000)]})
    assert data["thinned"] and len(data["x"]) <= POINTS + 1
    assert data["x"][-1] == 1000
    assert all(len(s["y"]) == len(data["x"]) for chart in data["charts"] for s in chart["series"])


def test_a_card_has_intervals_and_names_what_training_has_seen():
    accuracy = {"art": (60.0, 50), "crafted:blur": (70.0, 80), "crafted:color": (90.0, 80),
                "validation": (95.0, 100)}  # fmt: skip
    rows = card_rows(accuracy, {}, augmented=True)
    assert [(r.name, r.kind) for r in rows] == [
        ("validation", "source"), ("blur", "crafted"), ("color", "similar"), ("art", "target")
    ]  # fmt: skip
    assert rows[-1].interval == pytest.approx(wilson(30, 50))
    plain = card_rows(accuracy, {}, augmented=False)
    assert {r.kind for r in plain if r.name == "color"} == {"crafted"}


def test_details_count_what_was_predicted():
    model, domain = tiny_classifier(), tiny_domain("few", n=30)
    detail = evaluate_in_detail(model, domain)
    shown = domain_details(detail, domain, "few")
    assert sum(map(sum, shown.matrix)) == 30
    right = sum(row[n] for n, row in enumerate(shown.matrix))
    assert shown.accuracy == pytest.approx(100 * right / 30)
    probabilities = model.eval()(domain.images).softmax(1).amax(1)
    assert shown.confidence == pytest.approx(100 * float(probabilities.detach().mean()), abs=1e-3)
    assert len(shown.mistakes) == min(12, 30 - right)


def test_many_classes_are_shown_as_their_confusions():
    classes = tuple(f"class {n}" for n in range(30))
    model = Classifier(TinyEncoder(), torch.nn.Linear(8, 30), classes=classes)
    images = torch.randint(0, 256, (60, 3, 12, 12), dtype=torch.uint8)
    domain = Domain("many", classes, images, torch.arange(60) % 30)
    detail = evaluate_in_detail(model, domain)
    shown = domain_details(detail, domain, "many")
    assert shown.matrix is None
    for true, predicted, count in shown.confusions.rows:
        i, j = classes.index(true), classes.index(predicted)
        assert i != j and int(detail.confusion[i, j]) == int(count)


def test_a_forest_shows_each_row_with_its_interval():
    table = make_table(GROUPS)
    svg = str(forest(table))
    compared = [row for row in table.rows if row.difference]
    assert svg.count("<text") == len(compared) > 1
    for row in compared:
        assert f"{row.difference.mean:+.1f}" in svg


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    peerdg.fit(
        tiny_splits(), method="peer", model=tiny_classifier(), out=out, progress=False,
        peer={"k": 1, "head_dim": 4}, train={"epochs": 3, "batch_size": 8},
        pretrain={"epochs": 0}, crafted="off",
    )  # fmt: skip
    return out


def test_a_run_without_its_images_has_a_card_from_its_records(trained, tmp_path):
    run = read_run(trained)
    page = page_of(write_runs_page([run], tmp_path / "page.html"))
    final = run.final(run.deployed)
    for domain, accuracy in final.items():
        assert domain in page.text and f"{accuracy:.1f} %" in page.text
    assert "No images are shown" in page.text


def test_an_unfinished_run_is_shown_as_such(tmp_path):
    unfinished = replace(peer(), status="resumable")
    page = page_of(write_runs_page([unfinished], tmp_path / "page.html"))
    assert "resumable" in page.text and "peerdg resume peer-0" in page.text
    both = page_of(write_runs_page([peer(1), unfinished], tmp_path / "page.html"))
    assert "peer-0: resumable, epoch 3" in both.text


def test_only_the_images_and_the_model_of_the_run_itself_are_shown(tmp_path, monkeypatch):
    runs = []
    for place, seed in (("here", 0), ("there", 1)):
        out = tmp_path / place / "erm-0"
        digits = {"digits-mini": {"train": 100}, "train": {"epochs": 2, "batch_size": 50},
                  "pretrain": {"epochs": 0}, "crafted": "off"}  # fmt: skip
        peerdg.fit("digits-mini", method="erm", seed=seed, out=out, progress=False, **digits)
        runs.append(read_run(out))
    monkeypatch.chdir(tmp_path / "here")  # has a run of the same name
    save_runs(tmp_path, runs[1:])
    look = look_closer(load_runs(tmp_path)[0])
    assert look.missing and not look.details
    look = look_closer(runs[1])
    assert not look.missing and {d.name for d in look.details} == {"validation", *runs[1].targets}
    whole = {row.name: row.accuracy for row in look.rows}
    assert whole == {name: runs[1].final("model")[name] for name in whole}
    assert not look_closer(as_of(runs[1], 1)).details  # the model is that of epoch 2
    changed = {**runs[1].fingerprints, "train": "other"}
    assert not look_closer(replace(runs[1], fingerprints=changed)).details


def test_a_page_goes_into_a_folder_and_never_replaces_an_image(tmp_path):
    assert page_file(tmp_path) == tmp_path / "report.html"
    assert page_file(tmp_path / "new.html") == tmp_path / "new.html"
    with pytest.raises(ConfigError):
        page_file(tmp_path / "cat.jpg")


def test_a_domain_that_the_model_has_seen_is_not_called_unseen(tmp_path):
    oracle = replace(peer(), oracle=True)
    page = page_of(write_runs_page([oracle], tmp_path / "page.html"))
    assert "unseen" not in page.text
    assert "unseen" in page_of(write_runs_page([peer()], tmp_path / "page.html")).text


def test_the_card_and_the_text_are_those_of_the_selected_epoch(tmp_path):
    chosen = level("erm", 0, options={"select": "source-val"})
    assert chosen.deployed_epoch == 7  # where `accuracy` has its peak
    page = page_of(write_runs_page([chosen], tmp_path / "page.html"))
    assert "91.0 %" in page.text and "90.0 %" not in page.text
    assert page.data["chosen"] == [{"epoch": 7, "text": "deployed"}]


def test_several_runs_without_targets_and_a_collapsed_one_have_a_page(tmp_path):
    plain = [level(method, 0, targets=()) for method in ("erm", "randaugment")]
    assert "one seed" in page_of(write_runs_page(plain, tmp_path / "page.html")).text
    collapsed = replace(level("erm", 0), collapsed=("pretrain",))
    page = page_of(write_runs_page([collapsed], tmp_path / "page.html"))
    assert "collapsed" in page.text


def test_without_a_finished_run_there_is_no_page(tmp_path):
    runs = [replace(peer(seed), status="resumable") for seed in (0, 1)]
    with pytest.raises(ConfigError):
        write_runs_page(runs, tmp_path / "page.html")


def test_pages_stay_small(tmp_path):
    """60 runs of 1,000 epochs, and 200 classes."""
    runs = [level("erm", seed, epochs=1000, options={"train": {"lr": lr}})
            for seed in range(10) for lr in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)]  # fmt: skip
    page = write_runs_page(runs, tmp_path / "runs.html")
    assert page.stat().st_size < 6e6
    classes = tuple(f"class {n}" for n in range(200))
    model = Classifier(TinyEncoder(), torch.nn.Linear(8, 200), classes=classes)
    images = torch.randint(0, 256, (400, 3, 12, 12), dtype=torch.uint8)
    domain = Domain("many", classes, images, torch.arange(400) % 200)
    details = [evaluate_in_detail(model, domain)]
    page = write_evaluation_page(details, {"many": domain}, tmp_path / "e.html", title="many")
    assert page.stat().st_size < 3e6
