"""Names from outside (classes, files, domains) as text that no reader takes for anything else."""

import re

from peerdg.text import visible

_MARKUP = re.compile(r"([\\`*_{}\[\]#|!~$])")
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
