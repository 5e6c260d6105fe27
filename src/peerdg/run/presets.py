"""Budgets per benchmark, read from the TOML files in `peerdg/presets`."""

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from peerdg.options import merge

BUDGETS = ("quick", "standard", "paper")


def preset(benchmark: str, budget: str) -> dict[str, Any]:
    """Merge the options of a budget: those of the files it extends, then of its own file."""
    layers = map(_parse, preset_files(benchmark).values())
    return merge(*(layer.get(table, {}) for layer in layers for table in ("shared", budget)))


@cache
def _parse(text: str) -> dict[str, Any]:
    return tomllib.loads(text)


@cache
def preset_files(benchmark: str) -> dict[str, str]:
    """Read a preset and the files that it extends, by name, the most general one first."""
    text = files("peerdg.presets").joinpath(f"{benchmark}.toml").read_text("utf-8")
    parent = _parse(text).get("extends")
    return {**(preset_files(parent) if parent else {}), benchmark: text}


def origins(benchmark: str, budget: str) -> dict[str, str]:
    """Find where each value of a budget comes from, by dotted option, in the files' comments."""
    comments: dict[str, str] = {}
    for text in preset_files(benchmark).values():
        own: dict[str, dict[str, str]] = {"shared": {}, budget: {}}
        table, section = "", ""
        for line in text.splitlines():
            if heading := re.match(r"\[(\w+)\.?([\w-]*)\]", line):
                table, section = heading.groups()
            elif (value := re.match(r"(\w+) *=[^#]*# *(.*)", line)) and table in own:
                key, comment = value.groups()
                own[table][f"{section}.{key}".lstrip(".")] = comment
        comments |= own["shared"] | own[budget]
    return comments


def reason(origin: str) -> str:
    """Write an origin (`paper`, `paper: Digits`, `assumption: why`, `study x: y`) as a reason.

    Studies are those of the project, `results/x`. They choose by the source's images alone.
    """
    kind, _, text = origin.partition(": ")
    if kind == "assumption":
        return text
    if kind.startswith("study "):
        return f"{text} ({kind})"
    return f"the {kind}'s value" + (f" ({text})" if text else "")
