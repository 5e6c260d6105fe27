"""Text from outside (class, file and domain names) made safe to print."""


def visible(text: str) -> str:
    """Write control characters, line breaks and marks of direction out, on one line.

    A file may be named after a terminal command (`ESC ] 0 ; ...`) or a right-to-left mark; what is
    printed shows such a name instead of obeying it.
    """
    return "".join(c if c.isprintable() else _written_out(c) for c in text)


def _written_out(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def visible_lines(text: str) -> str:
    """`visible` for text of several lines: their breaks stay, everything else is written out."""
    return "\n".join(map(visible, text.split("\n")))
