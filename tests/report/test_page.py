"""The page of a report: what it says, what it compares with, and that it hides nothing active."""

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from peerdg.benches.plan import Published, Study
from peerdg.errors import ConfigError
from peerdg.evaluate.accuracy import evaluate_in_detail
from peerdg.evaluate.statistics import accuracy_text
from peerdg.report.compare import by_variant
from peerdg.report.evaluation import class_table, summary_table
from peerdg.report.page import (
    DETAILS,
    PAGE,
    compose_pages,
    published_table,
    rank_correlation,
    ranking_table,
    write_report,
)
from peerdg.report.runs import RunResult, load_runs
from peerdg.report.table import ReportTable, Row, Spread, make_table
from tests.conftest import tiny_classifier, tiny_domain
from tests.report.made import GROUPS, peer
from tests.report.test_compare import OTHER, QUESTIONS, WORTH
from tests.report.test_escape import HOSTILE


def page_of(*runs: RunResult, title: str = "t") -> str:
    groups = by_variant(runs)
    return "".join(compose_pages(make_table(groups), groups, title=title).values())


@pytest.fixture(scope="module")
def table() -> ReportTable:
    return make_table(GROUPS, failed={"l2d": 1})


def test_the_page_names_data_budget_seeds_and_options():
    runs = [peer(n=171), peer(1, n=171, peer={"w": 0.1}, fields={"software": ("peerdg 9",)})]
    page = page_of(*runs).replace("\\", "")
    for part in ("own-data to art, sketch, 171 source images for validation.",
                 "1 + 3 epochs, batch 8, adam 0.01", "Options of peer w=0.1: k 1, w 0.1.",
                 "Seeds: 0, 1.", "Trained with peerdg 9.", "Model selection: last epoch",
                 "peer w=0.1 is peer w=2 with peer.w 0.1."):  # fmt: skip
        assert part in page
    known = page_of(*(replace(r, images={"train": 1499}) for r in runs))
    assert "1,499 source images for training, 171 source images for validation" in known
    assert "Batch statistics" not in page and "Rows differ" not in page
    other = page_of(peer(), peer(method="erm", train={"lr": 0.5}))
    assert "Rows differ in train.lr." in other
    clean = page_of(peer(fields={"batch_statistics": "clean"}))
    assert "Batch statistics: clean." in clean


def test_everything_is_written_and_can_be_made_again_from_the_records(table, tmp_path: Path):
    write_report(table, GROUPS, tmp_path, title="A bench")
    assert {path.name for path in tmp_path.iterdir()} == {
        "report.md", "details.md", "table.csv", "differences.png", "overview.png", "runs.json",
        "evaluations.csv", "epochs.csv",
    }  # fmt: skip
    page, details = ((tmp_path / name).read_text() for name in ("report.md", "details.md"))
    assert page.count("](overview.png)") == details.count("](differences.png)") == 1
    assert page.count("| l2d †") == 1 and page.startswith("# A bench\n")
    assert details.count("| l2d †") == 4  # one in each table
    assert len(page.splitlines()) <= 40
    again = make_table(by_variant(load_runs(tmp_path)), failed={"l2d": 1})
    assert again == table
    assert (tmp_path / "table.csv").read_bytes() == again.csv().encode()


def test_questions_replace_the_figure_of_differences(table, tmp_path: Path):
    write_report(table, GROUPS, tmp_path, title="Study")
    asked = make_table(GROUPS, questions=QUESTIONS)
    write_report(asked, GROUPS, tmp_path, title="Study")
    page = (tmp_path / DETAILS).read_text()
    assert page.count(f"**{WORTH}**") == 1 and page.count("](answers.png)") == 1
    assert OTHER not in page and "And &lt;the&gt; rest" in page  # as text, not as Markdown
    assert "l2d † - erm" in page
    assert (tmp_path / "answers.png").stat().st_size > 10_000
    assert (tmp_path / "answers.csv").exists() and not (tmp_path / "differences.png").exists()
    write_report(table, GROUPS, tmp_path, title="Study")
    assert "## Questions" not in (tmp_path / DETAILS).read_text()
    assert not (tmp_path / "answers.png").exists() and not (tmp_path / "answers.csv").exists()


def test_runs_that_cannot_be_compared_have_no_report(tmp_path: Path):
    groups = {"a": [peer()], "b": [peer(images={"target:art": "a2"})]}
    with pytest.raises(ConfigError, match="different images"):
        write_report(make_table(groups), groups, tmp_path, title="t")
    assert list(tmp_path.iterdir()) == []
    without_targets = by_variant([peer(domains=["validation", "crafted:blur"])])
    write_report(make_table(without_targets), without_targets, tmp_path, title="t")
    assert not list(tmp_path.glob("*.png"))


def test_a_failed_run_and_a_row_without_runs_are_in_the_page(table):
    groups = {**GROUPS, "peer": []}
    failures = {"l2d-2": "Out | of memory."}
    whole = make_table(groups, failed={"peer": 2})
    finished = {n: g for n, g in groups.items() if g}
    page = compose_pages(whole, finished, title="t", failures=failures)[PAGE]
    assert "The run l2d-2 failed: Out \\| of memory." in page
    assert "| peer | 0 (2 failed) | - |" in page


# Published numbers.

PUBLISHED = Published(
    "Table 3 | of <it>",
    {
        "randaugment": {"syn": 50.0, "uci": 70.0, "cartoon": 1.0},
        "p-ens": {"syn": 53.0, "uci": 75.0},
        "peer": {"syn": 1.0, "uci": 1.0},
    },
)


def cells(table: ReportTable, published: Published) -> list[list[str]]:
    found = published_table(table, published)
    return [found.columns, *found.rows]


def test_rows_that_both_have_are_compared_with_published_ones(table):
    columns, first, second = cells(table, PUBLISHED)
    assert columns == ["method", "seeds", "syn", "uci", "mean", "vs randaugment"]
    assert (first[0], second[0]) == ("randaugment", "p-ens")  # of PEER there is no run
    assert first[4].endswith(" / 60.0") and second[4].endswith(" / 64.0")
    assert first[2].endswith(" / 50.0") and second[3].endswith(" / 75.0")
    # 63, 64 + 1 and 67 + 2 on syn, ten more on uci, against 59, 60 and 61.
    assert first[4].startswith("70.7 ± ") and first[5] == "-"
    assert second[5] == "-5.7 / +4.0"


def test_published_differences_are_over_seeds_that_both_rows_have():
    table = make_table({**GROUPS, "p-ens": GROUPS["p-ens"][1:2]})
    row = cells(table, PUBLISHED)[2]
    assert (row[1], row[5]) == ("1", "-5.0 / +4.0")
    mixed = {"randaugment": GROUPS["randaugment"][::-1], "p-ens": GROUPS["p-ens"]}
    assert cells(make_table(mixed), PUBLISHED)[2][5] == "-5.7 / +4.0"


def test_published_means_are_over_targets_that_all_rows_have(table):
    some = Published("", {"randaugment": {"syn": 50.0, "uci": 70.0}, "p-ens": {"uci": 75.0}})
    columns, _, second = cells(table, some)
    assert columns == ["method", "seeds", "uci", "mean", "vs randaugment"]
    assert second[3].endswith(" / 75.0") and second[4].endswith(" / +5.0")
    other = Published("", {"randaugment": {"uci": 70.0}, "p-ens": {"cartoon": 75.0}})
    assert [row[0] for row in cells(table, other)[1:]] == ["randaugment"]
    for nothing in ({"peer": {"syn": 1.0}}, {"p-ens": {"cartoon": 1.0}}):
        assert published_table(table, Published("", nothing)) is None
    page = compose_pages(table, GROUPS, title="x", study=Study(published=PUBLISHED))[DETAILS]
    assert "## Published numbers" in page
    assert "Table 3 | of <it>" not in page  # as text, not as Markdown


# Rankings.


def spread(values: dict[int, float] | None) -> Spread | None:
    return values and Spread(values, float(np.mean(list(values.values()))), None)


def row(name: str, targets: dict[int, float], crafted: dict[int, float] | None) -> Row:
    values = {"crafted val": spread(crafted)}
    return Row(method=name, seeds=tuple(targets), score=spread(targets), values=values)


def plain_spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Without ties: 1 - 6 Σ d² / (n (n² - 1)), d the difference of ranks."""
    d = np.argsort(np.argsort(a)) - np.argsort(np.argsort(b))
    return 1 - 6 * float((d**2).sum()) / (len(a) * (len(a) ** 2 - 1))


def test_a_ranking_is_the_rank_correlation_of_means_and_of_single_seeds():
    rng = np.random.default_rng(0)
    targets, crafted = rng.uniform(50, 70, (6, 3)), rng.uniform(80, 90, (6, 3))
    by_seed = [[dict(zip((4, 7, 9), v[n].tolist(), strict=True)) for v in (targets, crafted)]
               for n in range(6)]  # fmt: skip
    rows = [row(f"r{n}", *values) for n, values in enumerate(by_seed)]
    whole = plain_spearman(crafted.mean(1), targets.mean(1))
    single = [plain_spearman(crafted[:, n], targets[:, n]) for n in range(3)]
    expected = f"{whole:.2f} ({min(single):.2f} to {max(single):.2f})"
    assert rank_correlation(rows, "crafted val") == expected


def test_only_seeds_that_all_rows_have_are_ranked():
    """A row with another seed is not above others because that seed is easy."""
    rows = [
        row("a", {1: 90.0, 0: 60.0}, {0: 80.0, 1: 99.0}),
        row("b", {0: 61.0}, {0: 81.0}),
        row("c", {0: 62.0}, {0: 82.0}),
    ]
    assert rank_correlation(rows, "crafted val") == "1.00"
    alike = [row(name, {0: 60.0 + n}, {0: 80.0}) for n, name in enumerate("abc")]
    for without in (
        [row("a", {1: 90.0}, {1: 99.0}), *rows[1:]],
        alike,
        [*rows, row("d", {0: 1.0}, None)],
    ):
        assert rank_correlation(without, "crafted val") == "-"  # no common seed, ties, no score


def test_the_page_has_the_rankings_of_rows_that_it_has(table):
    names = [row.method for row in table.rows]
    rankings = {"all | of them": names, "two": [*names[:2], "peer"]}
    page = compose_pages(table, GROUPS, title="x", study=Study(rankings=rankings))[DETAILS]
    assert "## Choosing without targets" in page and "| all \\| of them | 4 |" in page
    assert "| two |" not in page and ranking_table(table, {}) is None
    # Without targets crafted validation would be compared with itself.
    assert ranking_table(replace(table, score="crafted val"), rankings) is None


# Names from outside. The most trusting of renderers: raw HTML and any address are let through.

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
    """Whatever a reader could click, load or be misled by, except our own figures."""
    found = []
    for token in tokens(page):
        own_link = token.type == "link_open" and token.attrs["href"] in (PAGE, DETAILS)
        if token.type in ("html_block", "html_inline", "link_open") and not own_link:
            found.append(f"{token.type}: {token.content or token.attrs}")
        if token.type == "image" and not re.fullmatch(r"[a-z]+(-\d+)?\.png", token.attrs["src"]):
            found.append(f"image: {token.attrs['src']}")
    return found


def shape(page: str) -> list[tuple[str, int]]:
    """The blocks and their depth, without their text."""
    return [(token.type, token.level) for token in PARSER.parse(page)]


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """`value` with every text in it changed."""
    if isinstance(value, dict):
        return {k: with_texts(v, change) for k, v in value.items()}
    if isinstance(value, list):
        return [with_texts(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


def hostile_runs(name: str) -> list[RunResult]:
    """Two variants of a method and a second method. Every text of them is `name`."""
    made: list[RunResult] = []
    for w in (2.0, 0.1, 0.3):
        original = peer(peer={"w": w})
        config = with_texts(original.config, lambda _: name)
        config["other"] = {name: name, "w": w}
        config["method"] = "peer" if len(made) < 2 else name
        config[config["method"]] = {**config["peer"], "regularizer": "barlow-twins"}
        evaluations = copy.deepcopy(original.evaluations)
        for record in evaluations:
            if record["domain"] in ("art", "sketch"):
                record["domain"] = f"{record['domain']} {name}"
        fields = {"software": (name, f"{name} too"), "path": Path(name), "folder": name}
        made.append(replace(original, config=config, evaluations=evaluations, **fields))
    return made


def test_the_parser_sees_what_is_active():
    for name in SHORT_HOSTILE[:4]:
        assert active(f"Name: {name}")


def test_a_page_has_nothing_active():
    plain = shape(page_of(*hostile_runs("plain"), title="plain"))
    for name in [*SHORT_HOSTILE, *HOSTILE]:
        page = page_of(*hostile_runs(name), title=name)
        assert active(page) == [] and shape(page) == plain, name


def test_figures_and_records_take_any_name(tmp_path: Path):
    name = SHORT_HOSTILE[4] + SHORT_HOSTILE[-1]
    groups = by_variant(hostile_runs(name))
    page = write_report(make_table(groups), groups, tmp_path, title=name).read_text()
    assert active(page) == []
    assert len(list(tmp_path.glob("*.png"))) == 2
    assert [run.final("task") for run in load_runs(tmp_path)] == [
        run.final("task") for group in groups.values() for run in group
    ]


def test_an_evaluation_shows_the_interval_of_few_images():
    few, many = (
        evaluate_in_detail(tiny_classifier(), tiny_domain("few", n=30)),
        evaluate_in_detail(tiny_classifier(), tiny_domain("many", n=330)),
    )
    rows = summary_table([few, many]).rows
    assert rows[0][2] == accuracy_text(few.accuracy, 30, with_n=False) and "(" in rows[0][2]
    assert rows[1][2] == f"{many.accuracy:.2f}"
    for shown, result in zip(class_table(few).rows, few.classes, strict=True):
        assert shown[3] == accuracy_text(100 * result.correct / 10, 10, with_n=False)
    assert class_table(many).rows[0][3] == f"{many.classes[0].accuracy:.2f}"
