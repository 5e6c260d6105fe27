"""Plan of a study, as a file: methods with options of their own.

    [variant.peer-k8]
    method = "peer"
    peer = { k = 8 }

`peerdg bench --plan` reads it; `benches.study` reads what it asks of the report. Free of torch.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from peerdg.averages.average_options import OPTIONS_OF
from peerdg.benches.study import SECTIONS, Study, read_study
from peerdg.errors import ConfigError
from peerdg.methods.recipes import COMBINATIONS, RECIPES
from peerdg.methods.registry import method_names, settings_of
from peerdg.options import did_you_mean, read_toml

VARIANT = "variant"  # the key of their table among the options of a bench
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")  # it becomes a part of a folder's name
_OF_THE_BENCH = ("seed", "train_seed", "recipe", VARIANT)


@dataclass(frozen=True)
class Variant:
    """A method and the options that it alone has.

    Args:
        method: An objective, recipe or combination.
        options: Over those of all runs, nested as in a config file.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """What `--plan` reads.

    Args:
        seeds: How many, from 0 on, or which.
        methods: Rows of the table before those of the variants.
        reference: The row that differences are to.
        options: Of all runs, with the table of variants.
        study: What the report is asked for.
    """

    seeds: tuple[int, ...]
    methods: tuple[str, ...] = ()
    reference: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    study: Study = field(default_factory=Study)

    def only(self, rows: Sequence[str]) -> "PlanFile":
        """Leave out what none of these rows has: sections of methods, options of averages."""
        variants = split_variants(self.options)[1]
        used = {variants[name].method if name in variants else name for name in rows}
        used &= {*known_methods()}
        options = {
            key: value
            for key, value in self.options.items()
            if key not in {*method_names()} - set(map(objective_of, used))
        }
        if isinstance(options.get("average"), Mapping):
            kinds = OPTIONS_OF.keys() - set(map(average_of, used))
            unused = {name for kind in kinds for name in OPTIONS_OF[kind]}
            unused -= {name for kind in OPTIONS_OF.keys() - kinds for name in OPTIONS_OF[kind]}
            average = options["average"].items()
            options["average"] = {name: value for name, value in average if name not in unused}
        reference = self.reference if self.reference in rows else None
        return replace(self, options=options, reference=reference)


def average_of(method: str) -> str | None:
    """Return the kind of average that a method deploys, if any."""
    recipe = RECIPES.get(COMBINATIONS[method].member if method in COMBINATIONS else method)
    asked = None if recipe is None else recipe.average
    return asked or settings_of(objective_of(method)).own_average


def objective_of(method: str) -> str:
    """Return the objective that a method, recipe or combination trains by."""
    method = COMBINATIONS[method].member if method in COMBINATIONS else method
    return RECIPES[method].method if method in RECIPES else method


def known_methods() -> tuple[str, ...]:
    """List everything that `peerdg methods` lists."""
    return (*method_names(), *RECIPES, *COMBINATIONS)


def split_variants(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Variant]]:
    """Split options into those of all runs and the variants by name.

    Raises:
        ConfigError: If a variant has no method, an unknown one (with the nearest name), a name that
            is taken or makes no folder, or an option that only the whole bench has.
    """
    common = {key: value for key, value in options.items() if key != VARIANT}
    tables = options.get(VARIANT, {})
    if not isinstance(tables, Mapping):
        raise ConfigError(f"'{VARIANT}' must be a table of variants.", hint=_example("NAME"))
    return common, {name: _variant(name, table) for name, table in tables.items()}


def read_plan_file(path: Path) -> PlanFile:
    """Read a plan; what its options mean is checked by `make_plan`.

    Raises:
        ConfigError: If the file cannot be read, or has other keys or types.
    """
    tables = read_toml(path)
    variants = tables.pop(VARIANT, {})
    asked = {name: tables.pop(name) for name in SECTIONS if name in tables}
    known = [*(f.name for f in fields(PlanFile) if f.name != "study"), VARIANT, *SECTIONS]
    for key in tables:
        if key not in known:
            raise ConfigError(f"Unknown key '{key}' in {path}.", hint=did_you_mean(key, known))
    options = tables.get("options", {})
    if not isinstance(options, dict) or not isinstance(variants, dict):
        raise ConfigError(f"'options' and '{VARIANT}' must be tables in {path}.")
    methods, reference = tables.get("methods", []), tables.get("reference")
    if not isinstance(methods, list) or not all(isinstance(name, str) for name in methods):
        raise ConfigError(f"'methods' must be a list of names in {path}.")
    if not isinstance(reference, str | None):
        raise ConfigError(f"'reference' must be the name of a method in {path}.")
    if VARIANT in options:
        raise ConfigError(f"Variants stand outside of 'options' in {path}.", hint=_example("NAME"))
    rows = (*methods, *(name for name in variants if name not in methods))
    return PlanFile(
        seeds=_seeds(tables.get("seeds", 5), path),
        methods=rows,
        reference=reference,
        study=read_study(asked, rows, path),
        options={**options, VARIANT: variants} if variants else options,
    )


def _seeds(value: Any, path: Path) -> tuple[int, ...]:
    if type(value) is int:
        return tuple(range(max(0, value)))
    if isinstance(value, list) and all(type(seed) is int for seed in value):
        return tuple(value)
    raise ConfigError(f"'seeds' must be a number or a list of numbers in {path}.")


def _variant(name: str, table: Any) -> Variant:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"A variant cannot be called {name!r}.",
            hint="Up to 60 letters, digits, dots, dashes and underscores, a letter or digit first.",
        )
    if name in known_methods():
        raise ConfigError(
            f"The variant '{name}' has the name of a method.",
            hint="Rename it, or give the method's options to all runs.",
        )
    if not isinstance(table, Mapping) or not isinstance(table.get("method"), str):
        raise ConfigError(f"The variant '{name}' names no method.", hint=_example(name))
    method = table["method"]
    if method not in known_methods():
        raise ConfigError(
            f"Unknown method '{method}' of the variant '{name}'.",
            hint=did_you_mean(method, known_methods()),
        )
    for key in _OF_THE_BENCH:
        if key in table:
            raise ConfigError(f"'{key}' is the same for the whole bench, not of '{name}'.")
    return Variant(method, {key: value for key, value in table.items() if key != "method"})


def _example(name: str) -> str:
    return f'Write [{VARIANT}.{name}], then method = "...", then the options that it alone has.'
