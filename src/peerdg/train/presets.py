"""Budgets per benchmark, read from the TOML files in `peerdg/presets`."""

import tomllib
from importlib.resources import files
from typing import Any

from peerdg.config import merge

BUDGETS = ("quick", "standard", "paper")


def preset(benchmark: str, budget: str) -> dict[str, Any]:
    """The options of a budget: what all budgets share, then its own."""
    tables = tomllib.loads(preset_text(benchmark))
    return merge(tables["shared"], tables[budget])


def preset_text(benchmark: str) -> str:
    """The file itself, whose comments say where each value comes from."""
    return files("peerdg.presets").joinpath(f"{benchmark}.toml").read_text("utf-8")
