"""What a terminal shows during a run, compared with the captures that were looked at.

The captures are in `tests/train/captures`, one file for each state and width.
"""

import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from peerdg.crafted import FAMILIES
from peerdg.report.result import RunResult
from peerdg.run.display import Block, in_short
from peerdg.terminal import Terminal

CAPTURES = Path(__file__).parent / "captures"
WIDTHS = (60, 80, 120)
TERMS = {"loss": 1.5117, "ce_clean": 0.1991, "ce_augmented": 0.4072, "regularizer": 9.0604}
DIGITS = {"validation": 95.9, "street": 50.3, "mnist-m": 72.8, "syn": 41.6, "uci": 62.5}
HOSTILE = (
    "\x1b]0;title\x07\x1b[31mred",
    "回転寿司の写真を集めた長い名前の領域",
    "צילומים של חתולים",
    "back\b\b\b\bspace\rcarriage\nline",
    "\u202eright to left\u202c",
    "[bold red]markup[/]",
    "x" * 300,
    "e\u0301" * 40,
    "👩‍👩‍👧‍👦" * 20,
)

BLOCKS = {
    "start": Block(phase="pretrain", epoch=1, epochs=2, left=46.2),
    "evaluating": Block(
        phase="train", epoch=1, epochs=20, share=0.04, left=251.7, images_per_second=451.6,
        terms=TERMS, activity="evaluating",
    ),
    "digits": Block(
        label="[3/12] peer-0", phase="train", epoch=14, epochs=240, share=0.377, left=7512,
        images_per_second=452, terms=TERMS, evaluated=10,
        accuracy={
            "proxy": DIGITS | {"crafted:blur": 50.0, "crafted:edges": 61.0},
            "task": {name: value - 1.2 for name, value in DIGITS.items()}
            | {"crafted:blur": 52.0, "crafted:edges": 63.0},
        },
    ),
    "many": Block(
        phase="train", epoch=9999, epochs=10000, share=0.999, left=3.2e6, images_per_second=123456,
        terms=TERMS, evaluated=9990,
        accuracy={
            "model": {"validation": 100.0}
            | {f"domain-number-{n}": 100.0 - n for n in range(14)}
        },
    ),
    "hostile": Block(
        label=HOSTILE[0], phase="train", epoch=3, epochs=20, share=0.1, left=61,
        images_per_second=20, terms=TERMS, evaluated=2,
        accuracy={"proxy": {name: 50.0 + i for i, name in enumerate(HOSTILE)}},
    ),
}  # fmt: skip


def rendered(block: Block, width: int, console: type[Console] = Terminal) -> str:
    text = io.StringIO()
    console(file=text, width=width, color_system=None, force_terminal=False).print(block)
    return text.getvalue()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", BLOCKS)
def test_the_block_is_as_it_was_looked_at(name: str, width: int):
    shown = rendered(BLOCKS[name], width)
    assert shown == (CAPTURES / f"{name}-{width}.txt").read_text("utf-8")


@pytest.mark.parametrize("width", [1, 7, 20, 33, *WIDTHS, 200])
@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("console", [Terminal, Console])
def test_no_line_is_wider_than_the_terminal_and_none_wraps(
    name: str, width: int, console: type[Console]
):
    lines = rendered(BLOCKS[name], width, console).splitlines()
    assert max(map(cell_len, lines)) <= width
    models = len(BLOCKS[name].accuracy)
    assert len(lines) == 2 + (1 + models if models else 0)
    assert all(line.isprintable() for line in lines)


@given(
    names=st.lists(st.text(max_size=30), min_size=1, max_size=12, unique=True),
    width=st.integers(30, 130),
)
@settings(max_examples=150, deadline=None)
def test_any_names_fit_any_width(names: list[str], width: int):
    accuracy = {name: 12.3 for name in names}
    block = Block(
        label=names[0], phase="train", epoch=1, epochs=9, left=5.0, accuracy={names[-1]: accuracy}
    )
    lines = rendered(block, width).splitlines()
    assert len(lines) == 4
    assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_every_number_that_is_shown_is_whole_and_belongs_to_its_column(width: int):
    """Columns are found by where they end, in the heading and in each row."""
    block = BLOCKS["digits"]
    heading, *rows = rendered(block, width).splitlines()[2:]
    for row, (model, values) in zip(rows, block.accuracy.items(), strict=True):
        expected = {name: f"{value:.1f}" for (_, name), value in in_short(values).items()}
        names = [name for name in heading[12:].split() if not name.startswith("+")]
        ends = [heading.index(f" {name}", 11) + 1 + len(name) for name in names]
        assert row.startswith(model)
        assert [row[:end].split()[-1] for end in ends] == [expected[name] for name in names]
        assert "mean" in names


def test_what_is_left_out_is_counted():
    assert "+2" in rendered(BLOCKS["digits"], 60)
    assert "+" not in rendered(BLOCKS["digits"], 80)


def test_shortened_names_keep_both_ends():
    names = rendered(BLOCKS["many"], 80).splitlines()[2].split()
    assert "dom…-0" in names and "dom…-1" in names


def test_a_domain_called_mean_is_not_taken_for_the_mean():
    accuracy = {"mean": 10.0, "crafted": 20.0, "crafted:blur": 90.0}
    short = in_short(accuracy)
    assert sorted(short.values()) == [10.0, 15.0, 20.0, 90.0]


def test_the_crafted_mean_is_over_the_families_of_the_final_tables():
    record = {"kind": "evaluation", "phase": "train", "epoch": 1, "model": "model"}
    accuracy = {f"crafted:{name}": 7.0 * n for n, name in enumerate(FAMILIES)}
    records = [{**record, "domain": d, "accuracy": a} for d, a in accuracy.items()]
    final = RunResult(Path("run"), {}, "done", records, []).crafted_mean("model")
    assert in_short(accuracy) == {("crafted", "crafted"): pytest.approx(final)}
    assert final != pytest.approx(sum(accuracy.values()) / len(accuracy))


def test_an_ascii_terminal_gets_an_ascii_bar():
    class Ascii(io.StringIO):
        encoding = "ascii"

    text = Ascii()
    Terminal(file=text, width=80, color_system=None).print(BLOCKS["start"])
    assert text.getvalue().isascii()
