import re

import pytest

from peerdg.terminal import Table, markdown_text, visible

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "[click](javascript:alert(1))",
    "![x](http://evil.example/x.png)",
    "`code`",
    "**bold** _it_ ~~no~~",
    "# heading",
    "a|b|c",
    "line\nbreak\r\nand tab\t",
    "\u202egnp.exe",
    "\x1b[31mred\x1b[0m",
    "https://evil.example",
    "www.evil.example and WWW.EVIL.EXAMPLE",
    "@everyone",
    "&lt;b&gt; $x^2$ \\",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_in_a_name_is_active_in_markdown_or_on_screen(name: str):
    text = markdown_text(name)
    assert len(text.splitlines()) == 1
    assert text.isprintable() and visible(name).isprintable()
    assert not re.search(r"[<>]|://|www\.|@", text, re.IGNORECASE)
    assert not re.search(r"(?<!\\)(\\\\)*[`*_\[\]|#!~$]", text.replace("&#", "&"))
    assert not re.search(r"&(?!amp;|lt;|gt;|#)", text)
    lines = Table([name, "n"], [[name, "1"]]).markdown().splitlines()
    assert len(lines) == 3  # a table keeps its shape
    for line in (lines[0], lines[2]):
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3


def test_ordinary_names_are_left_alone():
    for name in ("dog", "art painting", "Zürich", "12.5 ± 0.3", "犬", "-"):
        assert markdown_text(name) == visible(name) == name
