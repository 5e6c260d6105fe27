"""Text from outside (class, file and domain names) made safe to print, and to fit."""

import re

from rich.cells import cell_len, set_cell_size

_CONTINUED = re.compile(r"\n(?=  |\t|\Z)")


def visible(text: str) -> str:
    """Write control characters, line breaks and marks of direction out, on one line.

    A file may be named after a terminal command (`ESC ] 0 ; ...`) or a right-to-left mark; what is
    printed shows such a name instead of obeying it.
    """
    return "".join(c if c.isprintable() else _written_out(c) for c in text)


def visible_message(text: str) -> str:
    """`visible` for a message, whose further lines are indented by two spaces.

    Only such line breaks stay: one inside a name cannot begin a line of its own, which might read
    like an error or a result.
    """
    lines = [re.sub("^\t", "  ", line) for line in _CONTINUED.split(text)]
    return "\n".join(map(visible, lines))


def visible_lines(text: str) -> str:
    """`visible` for a text whose line breaks are all meant."""
    return "\n".join(map(visible, text.split("\n")))


def one_line(error: BaseException) -> str:
    """The message of a library's error, on one line and without its full stop, to end a text with.

    Libraries break their texts where they like; `visible_message` would write these breaks out.
    """
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def abridge(text: str, cells: int) -> str:
    """At most so many cells of `text`, from both ends: names often differ in the last letters."""
    if cell_len(text) <= cells:
        return text
    tail = ""
    for character in reversed(text):
        if cell_len(character + tail) > (cells - 1) // 2:
            break
        tail = character + tail
    while tail and not cell_len(tail[0]):  # an accent without its letter
        tail = tail[1:]
    head = set_cell_size(text, cells - 1 - cell_len(tail)).rstrip()
    return f"{head}…{tail}"


def storable(text: str) -> str:
    """Write out what a UTF-8 file could not hold: bytes of names that are not UTF-8.

    Python keeps such bytes of a file's name as lone surrogates.
    """
    try:
        content = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a character, which stands for no byte
        content = text.encode("utf-8", "surrogatepass")
    return content.decode("utf-8", "backslashreplace")


def _written_out(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


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


_LATEX = {
    "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}",
    "<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}", '"': "{''}",
    "[": "{[}", "]": "{]}",
    "±": "$\\pm$", "×": "$\\times$", "†": "$^\\dagger$", "‡": "$^\\ddagger$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}  # fmt: skip
_MINUS = re.compile(r"(?<![\w.])([+-])(?=\d)")


def latex_text(text: str) -> str:
    """Text that LaTeX sets as it is; signs of numbers are mathematics, a minus is no hyphen."""
    parts = _MINUS.split(visible(text))
    return "".join(
        f"${part}$" if number % 2 else "".join(_LATEX.get(c, c) for c in part)
        for number, part in enumerate(parts)
    )


def spreadsheet_text(cell: str) -> str:
    """Text that no spreadsheet calculates, with an apostrophe in front of each formula.

    Quoting alone does not protect: a file with commas is read with semicolons or tabs where that is
    the custom, and then a quote inside of a cell means nothing and `x;=1+1` is two cells.
    """
    cell = _FORMULA.sub("'", cell)
    return f"'{cell}" if cell.startswith(("\t", "\r", "\n")) else cell
