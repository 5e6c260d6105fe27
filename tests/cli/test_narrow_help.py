"""Help on narrow terminals breaks no option and no word of its explanation."""

import pytest

from peerdg.cli.main import COMMANDS, DATA_COMMANDS, run
from peerdg.terminal import console

PAGES = [[], ["data"], *([name] for name in COMMANDS), *(["data", name] for name in DATA_COMMANDS)]
FRAME = "│╭╮╰╯─"


def words(
    page: list[str], width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    monkeypatch.setattr(console, "_width", width)
    monkeypatch.setattr(console, "_height", 50)
    assert run([*page, "--help"], debug=False) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    return sorted(text.translate(dict.fromkeys(map(ord, FRAME), " ")).split())


@pytest.mark.parametrize(
    "width", [60, *(pytest.param(width, marks=pytest.mark.slow) for width in (80, 120))]
)
@pytest.mark.parametrize("page", PAGES, ids=" ".join)
def test_a_narrow_page_has_the_words_of_a_wide_one(
    page: list[str], width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    assert words(page, width, capsys, monkeypatch) == words(page, 500, capsys, monkeypatch)
