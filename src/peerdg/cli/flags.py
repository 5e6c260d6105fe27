"""Command-line flags for all options, and the config they resolve to."""

from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypedDict, get_type_hints

from cyclopts import Group, Parameter, Token, UnknownOptionError

from peerdg.cli.main import values_of
from peerdg.data.benchmarks import BENCHMARKS, OWN_DATA, find_data
from peerdg.methods.recipes import RECIPES
from peerdg.methods.registry import loaded_plugin, method_names, settings_of
from peerdg.options import nearest, read_toml
from peerdg.run.config import ALIASES, SECTIONS, RunConfig, resolve_given
from peerdg.run.presets import Choices

# Options on every help page, and short flag names.
COMMON = ("method", "backbone", "weights", "budget", "seed", "root", "device", "threads")
SHORT = {"targets": "--target", "train.epochs": "--epochs", "own-data.class_map": "--map"}
Data = Annotated[
    str | None,
    Parameter(help="data set (`peerdg data list`), or a folder or list of your own images"),
]
ConfigFile = Annotated[
    Path | None,
    Parameter(help="TOML file with options; flags override it", name=("--config", "-c")),
]
_make_table: Any = TypedDict  # Any, because type checkers accept only literal fields
Options = Any  # replaced by `options_for` when a command is called


def whole_number(kind: Any, tokens: Sequence[Token]) -> int:
    """Parse an integer strictly, because cyclopts would round 1.5 to 2."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f'"{tokens[0].value}" is not a whole number.') from None


def whole_numbers(kind: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    """Parse integers given as `1,2,3` or as a repeated flag."""
    values = [part for token in tokens for part in token.value.split(",")]
    try:
        return tuple(map(int, values))
    except ValueError:
        raise ValueError(f'"{",".join(values)}" is not a list of whole numbers.') from None


Whole = Annotated[int, Parameter(converter=whole_number)]
OptionalWhole = Annotated[int | None, Parameter(converter=whole_number)]
SeedList = Annotated[tuple[int, ...] | None, Parameter(converter=whole_numbers)]
Plugin = Annotated[Path | None, Parameter(help="Python file with your own method; it is executed")]
Quiet = Annotated[bool, Parameter(name=("--quiet", "-q"), help="hide progress")]
Json = Annotated[bool, Parameter(name="--json", help="print the result as JSON")]


def options_for(command: str, arguments: Sequence[str]) -> Any:
    """Create the type of a command's options, nested like the tables of a config file.

    `bench` and `paper run` have no options for method and seed. With `--help`, only the common
    options and those for the chosen method and data set are included.
    """
    left_out = ["benchmark"]
    if command in ("bench", "paper run"):
        left_out += ["method", "seed", "train_seed"]
    shown = None
    if "--help" in arguments or "-h" in arguments:
        shown = tuple(_chosen_sections(arguments))
    return _make_options(method_names(), tuple(left_out), shown)


def _chosen_sections(arguments: Sequence[str]) -> list[str]:
    plugin = loaded_plugin()
    default = plugin.name if plugin else RunConfig.method
    *_, given = [default, *values_of(arguments, "--method", "--methods")]
    methods = [RECIPES[name].method if name in RECIPES else name for name in given.split(",")]
    is_own = any(Path(argument).expanduser().exists() for argument in arguments)
    data = [name for name in arguments if name in BENCHMARKS] or [OWN_DATA] * is_own
    return list(dict.fromkeys([*(m for m in methods if m in method_names()), *data]))


@cache
def _make_options(
    methods: tuple[str, ...], left_out: tuple[str, ...], shown: tuple[str, ...] | None
) -> Any:
    sections: dict[str, Any] = {"": RunConfig, **SECTIONS}
    sections |= {name: settings_of(name) for name in methods if shown is None or name in shown}
    sections |= {name: data.settings for name, data in BENCHMARKS.items()}
    options: dict[str, Any] = {}
    for section, kind in sections.items():
        hints, flags = get_type_hints(kind), {}
        for f in fields(kind):
            name = f"{section}.{f.name}".lstrip(".")
            is_common = name in COMMON or name in SHORT
            is_shown = shown is None or is_common or section in shown
            if is_shown and "help" in f.metadata and name not in left_out:
                flags[f.name] = _flag(f, hints[f.name], section, is_common=is_common)
        if section and flags:
            table = _make_table(section, flags, total=False)
            options[section] = Annotated[table, Parameter(name=f"--{section}")]
        else:
            options |= flags
    table = _make_table("options", options, total=False)
    return Annotated[table | None, Parameter(name="*")]


def _flag(f: Any, kind: Any, section: str, *, is_common: bool) -> Any:
    default = str(f.default).lower() if isinstance(f.default, bool) else f.default
    converter: Any = None
    if kind in (int, int | None):
        converter = whole_number
    elif kind in (tuple[int, ...], tuple[int, ...] | None):
        converter = whole_numbers
    group = Group("Common options", sort_key=1)
    if not is_common:
        group = Group(f"Options: {section or 'run'}", sort_key=10 if section else 5)
    parameter = Parameter(
        help=f.metadata["help"] + (f" [{default}]" if section and default is not None else ""),
        group=group,
        negative_bool=("no-",),
        converter=converter,
        alias=SHORT.get(f"{section}.{f.name}".lstrip("."), f.metadata.get("formerly")),
    )
    return Annotated[kind, parameter]


def resolve_flags(
    data: str | None, options: Options, *, file: Path | None
) -> tuple[RunConfig, Choices | None]:
    """Resolve the config file and flags. Also return the choices made for the user's images."""
    tables = read_toml(file) if file else {}
    given = (options or {}) | (find_data(data) if data is not None else {})
    if plugin := loaded_plugin():  # replace the identity stored in a config file
        tables, given = {"method": plugin.name, **tables}, {**given, "plugin": plugin.identity}
    return resolve_given(given, file=tables)


# Option names from other programs that users may type.
_ALIASES = {f"--{typed}": f"--{name}" for typed, name in ALIASES.items()} | {
    "--output": "--out", "--dir": "--out", "--dataset": "--root", "--data": "--root",
    "--force": "--overwrite", "--size": "--transform.size", "--image-size": "--transform.size",
    "--gpu": "--device", "--cuda": "--device", "--pretrained": "--weights imagenet",
}  # fmt: skip


def explain_unknown_option(error: UnknownOptionError) -> tuple[str, str]:
    """Return an error message for an unknown option, and a hint with the nearest known one."""
    token = error.token.keyword or error.token.value
    name = token.split("=")[0].replace("_", "-")
    flags = [each for each in error.argument_collection or () if not each.children]
    known = [n for each in flags for n in each.names if n.startswith("--")] + ["--help", "--debug"]
    aliases: dict[str, str] = {}
    for method in (*method_names(), RunConfig.method):  # the default method comes last and wins
        aliases |= {f"--{f.name}": f"--{method}.{f.name}" for f in fields(settings_of(method))}
    aliases = {k.replace("_", "-"): v.replace("_", "-") for k, v in (aliases | _ALIASES).items()}
    meant = {k: v for k, v in aliases.items() if v.split()[0] in known}
    meant |= {flag: flag for flag in known}
    section, dot, _ = name.partition(".")
    inside = [flag for flag in known if dot and flag.startswith(f"{section}.")]
    guess = meant.get(nearest(name, inside) or nearest(name, meant) or "")
    hint = f"Did you mean {guess}?" if guess else "See the command's --help for its options."
    return f"Unknown option {token}.", hint
