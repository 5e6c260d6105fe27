"""Names from outside (classes, files, domains) as text that no reader takes for anything else."""

import re

from peerdg.text import visible

_MARKUP = re.compile(r"([\\`*_{}\[\]#|!~$])")
# Where a spreadsheet would see a formula: at the start of a cell and after each character that
# separates cells or lines for some reader, whatever blanks and quotes come in between.
_SEPARATOR = r"[;|\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]"
_TRIGGER = r"[=+\-@\uff1d\uff0b\uff0d\uff20]"  # and their full-width forms
_FORMULA = re.compile(rf'(?:^|(?<={_SEPARATOR}))(?=[\s"]*{_TRIGGER})')
# What a renderer makes active without any markup: addresses and mentions.
_ACTIVE = {"://": "&#58;//", "www.": "www&#46;", "@": "&#64;"}


def markdown_text(text: str) -> str:
    """Text that Markdown shows as it is, in a paragraph, a heading or a table cell."""
    text = visible(text)
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, entity)
    text = _MARKUP.sub(r"\\\1", text)
    for active, harmless in _ACTIVE.items():
        text = re.sub(re.escape(active), harmless, text, flags=re.IGNORECASE)
    return text


def spreadsheet_text(cell: str) -> str:
    """Text that no spreadsheet calculates, with an apostrophe in front of each formula.

    Quoting alone does not protect: a file with commas is read with semicolons or tabs where that is
    the custom, and then a quote inside of a cell means nothing and `x;=1+1` is two cells.
    """
    cell = _FORMULA.sub("'", cell)
    return f"'{cell}" if cell.startswith(("\t", "\r", "\n")) else cell
