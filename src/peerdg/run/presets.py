"""Budgets per benchmark, read from the TOML files in `peerdg/presets`."""

import re
import tomllib
from importlib.resources import files
from typing import Any

from peerdg.config import merge

BUDGETS = ("quick", "standard", "paper")


def preset(benchmark: str, budget: str) -> dict[str, Any]:
    """The options of a budget: what all budgets share, then its own."""
    tables = tomllib.loads(preset_text(benchmark))
    return merge(tables["shared"], tables[budget])


def origins(benchmark: str, budget: str) -> dict[str, str]:
    """Where each value of a budget comes from, by dotted option: the comments of the file."""
    found: dict[str, dict[str, str]] = {"shared": {}, budget: {}}
    table, section = "", ""
    for line in preset_text(benchmark).splitlines():
        if heading := re.fullmatch(r"\[(\w+)\.?([\w.-]*)\]", line):
            table, section = heading.groups()
        elif (value := re.match(r"(\w+) *=[^#]*# *(.*)", line)) and table in found:
            key, comment = value.groups()
            found[table][f"{section}.{key}".lstrip(".")] = comment
    return {**found["shared"], **found[budget]}


def reason(origin: str) -> str:
    """The origin of a value as a reason: `paper`, `paper: Digits`, `assumption: why`, `study x: y`.

    Studies are those of the project, `results/x`; what they chose, they chose by the source alone.
    """
    kind, _, text = origin.partition(": ")
    if kind == "assumption":
        return text
    if kind.startswith("study "):
        return f"{text} ({kind})"
    return f"the {kind}'s value" + (f" ({text})" if text else "")


def preset_text(benchmark: str) -> str:
    """The file itself, whose comments say where each value comes from."""
    return files("peerdg.presets").joinpath(f"{benchmark}.toml").read_text("utf-8")
