"""Command-line flags of all options, and the config that they resolve to."""

from collections.abc import Sequence
from dataclasses import field, fields, is_dataclass, make_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from cyclopts import Group, Parameter, Token, UnknownOptionError

from peerdg.data.benchmarks import BENCHMARKS, OWN_DATA, no_such_data
from peerdg.methods.recipes import RECIPES
from peerdg.methods.registry import Plugin, loaded_plugin, method_names, plugin_of, settings_of
from peerdg.options import nearest, read_toml
from peerdg.run.config import ALIASES, SECTIONS, RunConfig, resolve_given
from peerdg.run.presets import Choices

# Options that every help page has, and short names of some.
COMMON = ("method", "backbone", "weights", "budget", "seed", "root", "device", "threads")
SHORT = {"targets": "--target", "train.epochs": "--epochs", "own-data.class_map": "--map"}
DATA = Parameter(help="data set (`peerdg data list`), or a folder or list of your own images")
CONFIG = Parameter(help="TOML file with options; flags win over it", name=("--config", "-c"))
PLUGIN = Parameter(help="Python file with a method of your own, which is executed")
Options = Any  # of a command, where `options_for` takes its place when it is called


def whole_number(kind: Any, tokens: Sequence[Token]) -> int:
    """Read an integer strictly. cyclopts would round 1.5 to 2."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f'"{tokens[0].value}" is not a whole number.') from None


def whole_numbers(kind: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    """Read integers with commas between them, or each in a flag of its own."""
    values = [part for token in tokens for part in token.value.split(",")]
    try:
        return tuple(map(int, values))
    except ValueError:
        raise ValueError(f'"{",".join(values)}" is no list of whole numbers.') from None


SEED_LIST = Parameter(converter=whole_numbers)


def options_for(command: str, arguments: Sequence[str]) -> Any:
    """Make the type of a command's options: a dataclass whose fields are None unless given.

    Args:
        command: The command. `bench` has no options that its methods and seeds decide.
        arguments: Arguments after it. With `--help`, there are only the common options and those
            of the chosen method and data set.
    """
    left_out = ["benchmark"]
    if command == "bench":
        left_out += ["method", "seed", "train_seed"]
    shown = None
    if "--help" in arguments or "-h" in arguments:
        shown = tuple(_chosen_sections(arguments))
    return _make_options(method_names(), tuple(left_out), shown) | None


def _chosen_sections(arguments: Sequence[str]) -> list[str]:
    plugin = loaded_plugin()
    methods = [plugin.name if plugin else RunConfig.method]
    for argument, following in pairwise([*arguments, ""]):
        flag, _, value = argument.partition("=")
        if flag in ("--method", "--methods"):
            methods = (value or following).split(",")
    methods = [RECIPES[name].method if name in RECIPES else name for name in methods]
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
    made: list[Any] = []
    for section, kind in sections.items():
        hints, flags = get_type_hints(kind), []
        for f in fields(kind):
            name = f"{section}.{f.name}".lstrip(".")
            is_common = name in COMMON or name in SHORT
            if (
                "help" in f.metadata
                and name not in left_out
                and (shown is None or is_common or section in shown)
            ):
                flags.append(_flag(f, hints[f.name], section, is_common=is_common))
        if section and flags:
            kind = Parameter(name=f"--{section}")(_make_dataclass(section, flags))
            made.append((section.replace("-", "_"), kind | None, field(default=None)))
        else:
            made += flags
    return Parameter(name="*")(_make_dataclass("options", made))


def _make_dataclass(name: str, flags: list[Any]) -> Any:
    made = make_dataclass(f"{name.title()}Flags", flags, kw_only=True)
    made.__module__ = __name__  # "types" otherwise, which cyclopts takes for a builtin
    return made


def _flag(f: Any, kind: Any, section: str, *, is_common: bool) -> tuple[str, Any, Any]:
    """Make a dataclass field that becomes a flag, None unless given."""
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
    return f.name, Annotated[kind | None, parameter], field(default=None)


def resolve_flags(
    data: str | None, options: Any, *, file: Path | None, plugin: Path | None
) -> tuple[RunConfig, Choices | None]:
    """Resolve the preset, then the config file, then the flags that were given.

    Args:
        data: Name of a data set, or a folder or list of images.
        options: Flags.
        file: Config file.
        plugin: Python file of a method.

    Returns:
        The config, and the choices that the images of a folder or list decided in it.
    """
    tables = read_toml(file) if file else {}
    given = given_options(options) | (which_data(data) if data is not None else {})
    if plugin is not None:  # as it is now, not as a config file says that it was
        loaded = require_plugin(plugin)
        tables, given = {"method": loaded.name, **tables}, {**given, "plugin": loaded.identity}
    return resolve_given(given, file=tables)


def given_options(options: Any) -> dict[str, Any]:
    """Collect the flags that were given, nested as in a config file."""
    given: dict[str, Any] = {}
    for f in fields(options) if options is not None else ():
        value = getattr(options, f.name)
        if is_dataclass(value):
            if inner := given_options(value):
                given[f.name.replace("_", "-")] = inner
        elif value is not None:
            given[f.name] = value
    return given


def which_data(data: str) -> dict[str, Any]:
    """Find a data set by name, or a folder or list by its path.

    Raises:
        ConfigError: If it looks like a misspelt data set.
        DataError: If there is no such folder or list.
    """
    if data in BENCHMARKS:
        return {"benchmark": data}
    if Path(data).expanduser().exists():
        return {"benchmark": OWN_DATA, "root": data}
    raise no_such_data(data)


def require_plugin(path: Path) -> Plugin:
    """Return the plugin that `peerdg.cli.main.run` has loaded, before flags were known."""
    plugin = plugin_of(path.stem.replace("_", "-"))
    if plugin is None:
        raise RuntimeError(f"The plugin {path} was not loaded.")
    return plugin


def explained_choices(config: RunConfig, choices: Choices | None) -> list[str]:
    """Write a heading, then each chosen option with its reason. Nothing if nothing was chosen."""
    lines = choices.explain(config.tables()) if choices else []
    heading = "Chosen for your images; each line begins with the option that changes it:"
    return [heading, *(f"  {line}" for line in lines)] if lines else []


# What people type for options that have another name here.
_ALIASES = {f"--{typed}": f"--{name}" for typed, name in ALIASES.items()} | {
    "--output": "--out", "--dir": "--out", "--dataset": "--root", "--data": "--root",
    "--force": "--overwrite",
}  # fmt: skip


def explain_unknown_option(error: UnknownOptionError) -> tuple[str, str]:
    """Say which option is unknown, and name the nearest known one."""
    token = error.token.keyword or error.token.value
    name = token.split("=")[0].replace("_", "-")
    if name == "--plugin":
        hint = "--plugin goes with train, bench, resume, config and methods."
        return f"Unknown option {token}.", hint
    known = [n for argument in error.argument_collection or () for n in argument.names]
    known = [n for n in known if n.startswith("--")] + ["--help", "--debug"]
    aliases: dict[str, str] = {}
    for method in (*method_names(), RunConfig.method):  # the default method's name wins
        aliases |= {f"--{f.name}": f"--{method}.{f.name}" for f in fields(settings_of(method))}
    aliases = {k.replace("_", "-"): v.replace("_", "-") for k, v in (aliases | _ALIASES).items()}
    guess = aliases.get(name)
    if guess not in known:
        section, dot, key = name.partition(".")
        inside = [n for n in known if n.startswith(f"{section}.")] if dot else []
        close = nearest(key, [n.partition(".")[2] for n in inside])
        guess = f"{section}.{close}" if close else nearest(name, known)
    hint = f"Did you mean {guess}?" if guess else "See the command's --help for its options."
    return f"Unknown option {token}.", hint
