"""Flags from dataclasses: every option of `RunConfig` becomes a flag that is None unless given."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from cyclopts import Group, Parameter, Token, UnknownOptionError

from peerdg.data.benchmarks import BENCHMARKS, OWN_DATA, no_such_data
from peerdg.errors import ConfigError
from peerdg.methods.registry import Plugin, method_names, plugin_of, settings_of
from peerdg.options import merge, nearest, read_toml
from peerdg.run.choices import Choices
from peerdg.run.config import SECTIONS, RunConfig, refuse_unused_augmentation, resolve

COMMON = ("method", "backbone", "weights", "budget", "seed", "root", "device", "threads")
# A file with these is the config of a run: it is complete; no defaults are derived.
_COMPLETE = {"benchmark", "backbone", "budget", "pretrain", "train"}


def _sections(methods: tuple[str, ...]) -> dict[str, type[Any]]:
    """Every section a config may have, by name."""
    own = {name: settings_of(name) for name in methods}
    return {**SECTIONS, **own, **{b.name: b.settings for b in BENCHMARKS.values()}}


def _optional(cls: type[Any], name: str) -> type[Any]:
    """`cls` with every field optional and None, its help text kept, as one group of flags."""
    hints = get_type_hints(cls)
    group = Group(f"Options: {name}", sort_key=10)
    made = [
        _flag(
            f.name,
            hints[f.name],
            f"{f.metadata['help']} [{_shown(f.default)}]",
            group,
            alias=f.metadata["formerly"],
        )
        for f in fields(cls)
    ]
    return _make(f"{name.title()}Flags", made)


def _make(name: str, made: list[Any]) -> type[Any]:
    made_class = make_dataclass(name, made, kw_only=True)
    made_class.__module__ = __name__  # "types" otherwise, which cyclopts takes for a builtin
    return made_class


def _flag(
    name: str, kind: Any, help: str, group: Group, alias: str | None = None
) -> tuple[str, Any, Any]:
    """A dataclass field that becomes a flag, None unless given."""
    whole: Any = whole_number if kind in (int, int | None) else None
    if kind in (tuple[int, ...], tuple[int, ...] | None):
        whole = whole_numbers
    parameter = Parameter(
        help=help,
        group=group,
        negative_none=(),
        negative_iterable=(),
        converter=whole,
        alias=alias,
    )
    return name, Annotated[kind | None, parameter], field(default=None)


def whole_number(kind: Any, tokens: Sequence[Token]) -> int:
    """Read an integer strictly; cyclopts would silently round 1.5 to 2."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f'"{tokens[0].value}" is not a whole number.') from None


def whole_numbers(kind: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    """Integers, with commas between them or each in a flag of its own."""
    values = [part for token in tokens for part in token.value.split(",")]
    try:
        return tuple(map(int, values))
    except ValueError:
        raise ValueError(f'"{",".join(values)}" is no list of whole numbers.') from None


SEED_LIST = Parameter(converter=whole_numbers, negative_iterable=())


def _shown(default: Any) -> str:
    if default is None:
        return "unset"
    return str(default).lower() if isinstance(default, bool) else str(default)


@cache
def _options(methods: tuple[str, ...], *, without: tuple[str, ...] = ()) -> type[Any]:
    """All options as flags, with those of the named methods.

    Args:
        methods: The methods whose options are flags.
        without: Options at the top that are left out.
    """
    hints = get_type_hints(RunConfig)
    known = {f.name: f for f in fields(RunConfig)}
    common = Group("Common options", sort_key=1)
    rest = Group("Options: run", sort_key=5)
    made: list[Any] = []
    for name, f in known.items():
        if "help" not in f.metadata or name in ("benchmark", "targets", *without):
            continue
        group = common if name in COMMON else rest
        made.append(_flag(name, hints[name], f.metadata["help"], group))
    for name, cls in _sections(methods).items():
        if fields(cls):
            flags: Any = Annotated[_optional(cls, name) | None, Parameter(name=f"--{name}")]
            made.append((name.replace("-", "_"), flags, field(default=None)))
    return Parameter(name="*")(_make("Options", made))


OF_A_BENCH = ("method", "seed", "train_seed")  # decided by --methods and --seeds

if TYPE_CHECKING:
    Options = Any
    BenchOptions = Any
else:
    _of_the_package = tuple(name for name in method_names() if plugin_of(name) is None)
    Options = _options(_of_the_package)
    BenchOptions = _options(_of_the_package, without=OF_A_BENCH)


def with_method_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A copy of a command that has the flags of all methods that are known now.

    The flags of a plugin are not known before it is loaded, and the command was defined before.
    """
    copied = FunctionType(command.__code__, command.__globals__, command.__name__)
    copied.__doc__, copied.__module__ = command.__doc__, command.__module__
    copied.__defaults__, copied.__kwdefaults__ = command.__defaults__, command.__kwdefaults__
    is_bench = command.__annotations__["options"] == BenchOptions | None
    flags = _options(method_names(), without=OF_A_BENCH if is_bench else ())
    copied.__annotations__ = {**command.__annotations__, "options": flags | None}
    return copied


PLUGIN = Parameter(help="Python file with a method of your own, which is executed")


@Parameter(name="*")
@dataclass(kw_only=True)
class DataFlags:
    """Shorthands that commands that train share."""

    epochs: Annotated[
        int | None,
        Parameter(
            help="epochs of the main phase (short for --train.epochs)", converter=whole_number
        ),
    ] = None
    target: Annotated[
        tuple[str, ...] | None,
        Parameter(help="target domain; repeat it for several", negative_iterable=()),
    ] = None
    class_map: Annotated[
        tuple[str, ...] | None,
        Parameter(
            name="--map",
            help="class that targets of your own call otherwise, e.g. Dog=dog; repeat it for "
            "several",
            negative_iterable=(),
        ),
    ] = None


@Parameter(name="*")
@dataclass(kw_only=True)
class CommonFlags(DataFlags):
    """Shorthands of commands about one run."""

    plugin: Annotated[Path | None, PLUGIN] = None
    config: Annotated[
        Path | None,
        Parameter(help="TOML file with options; flags win over it", name=("--config", "-c")),
    ] = None


def config_from_flags(
    data: str | None,
    common: CommonFlags,
    options: Any,
    *,
    note: Callable[[str], None] = lambda text: None,
) -> RunConfig:
    """Preset, then the config file, then the flags that were given.

    Args:
        data: Name of a data set, or a folder or list of images.
        common: Shorthands.
        options: All other flags.
        note: Receives what was chosen for a folder or list, and why, line by line.
    """
    config, choices = resolve_flags(data, common, options)
    for line in explained_choices(config, choices):
        note(line)
    return config


def resolve_flags(
    data: str | None, common: CommonFlags, options: Any
) -> tuple[RunConfig, Choices | None]:
    """The config of `config_from_flags`, and what the images of a folder or list decided in it."""
    file = read_toml(common.config) if common.config else {}
    given = all_given(data, common, options, file)
    if common.plugin is not None:
        file, given = with_plugin(common.plugin, file, given)
    complete = _COMPLETE <= file.keys()
    config, choices = _resolved(given, file, complete=complete)
    refuse_unused_augmentation(config, given if complete else merge(file, given))
    return config, choices


def _resolved(
    given: Mapping[str, Any], file: Mapping[str, Any], *, complete: bool
) -> tuple[RunConfig, Choices | None]:
    if complete or not _names_own_images(merge(file, given)):
        config = resolve(file, given)
        BENCHMARKS[config.benchmark].refuse_unused_root(config.root)
        return config, None
    from peerdg.run.config import resolve_own_data  # looks at images, so it imports torch

    return resolve_own_data(given, file=file)


def all_given(
    data: str | None, common: DataFlags, options: Any, file: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Everything that was given on the command line, nested as in a config file.

    Args:
        data: Name of a data set, or a folder or list of images.
        common: Shorthands.
        options: All other flags.
        file: Options from a config file, which may name the data set, too.
    """
    given = given_options(options)
    if data is not None:
        given |= which_data(data)
    if common.target:
        given["targets"] = list(common.target)
    if common.epochs is not None:
        given.setdefault("train", {})["epochs"] = common.epochs
    if common.class_map:
        if (benchmark := merge(file or {}, given).get("benchmark")) != OWN_DATA:
            raise ConfigError(
                f"--map is for folders and lists of your own; the classes of "
                f"{benchmark or RunConfig.benchmark} are fixed.",
            )
        given.setdefault(OWN_DATA, {})["class_map"] = list(common.class_map)
    return given


def with_plugin(
    plugin: Path, file: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A config file and flags, where the method is the plugin's unless they name another.

    The run keeps what the plugin is now, not what a config file says it was.
    """
    loaded = require_plugin(plugin)
    return {"method": loaded.name, **file}, {**given, "plugin": loaded.identity}


def require_plugin(path: Path) -> Plugin:
    """The plugin that `peerdg.cli.main.run` has loaded, before flags were known."""
    plugin = plugin_of(path.stem.replace("_", "-"))
    if plugin is None:
        raise RuntimeError(f"The plugin {path} was not loaded.")
    return plugin


def _names_own_images(wanted: Mapping[str, Any]) -> bool:
    """Whether there is a folder or list to look at; `resolve` refuses what is of a wrong type."""
    typed = isinstance(wanted.get("root"), str) and isinstance(wanted.get(OWN_DATA, {}), Mapping)
    return typed and wanted.get("benchmark") == OWN_DATA


def explained_choices(config: RunConfig, choices: Choices | None) -> list[str]:
    """A heading, then each chosen option with its reason; nothing if nothing was chosen."""
    lines = choices.explain(config.tables()) if choices else []
    heading = "Chosen for your images; each line begins with the option that changes it:"
    return [heading, *(f"  {line}" for line in lines)] if lines else []


def which_data(data: str) -> dict[str, Any]:
    """A data set by name, or a folder or list by its path.

    Raises:
        ConfigError: If it looks like a misspelt data set.
        DataError: If there is no such folder or list.
    """
    if data in BENCHMARKS:
        return {"benchmark": data}
    if Path(data).expanduser().exists():
        return {"benchmark": OWN_DATA, "root": data}
    raise no_such_data(data)


def given_options(options: Any) -> dict[str, Any]:
    """The flags that were given, nested as in a config file."""
    if options is None:
        return {}
    given: dict[str, Any] = {}
    for f in fields(options):
        value = getattr(options, f.name)
        if is_dataclass(value):
            value = given_options(value)
            name = f.name.replace("_", "-")  # of a section: a method, a data set, `train`, ...
            if value:
                given[name] = value
        elif value is not None:
            given[f.name] = value
    return given


# What people type for options that have another name here.
_ALIASES = {
    "--lr": "--train.lr", "--learning-rate": "--train.lr", "--batch-size": "--train.batch-size",
    "--output": "--out", "--dir": "--out", "--model": "--backbone", "--dataset": "--root",
    "--data": "--root", "--targets": "--target", "--force": "--overwrite",
}  # fmt: skip


def _all_aliases() -> dict[str, str]:
    """`_ALIASES`, and those of the methods, with and without the section in front.

    An option of a method without its section is that of the default method, if it has one.
    """
    found: dict[str, str] = {}
    for method in (*method_names(), RunConfig.method):
        for f in fields(settings_of(method)):
            found[f"--{f.name}"] = f"--{method}.{f.name}"
    return {key.replace("_", "-"): name.replace("_", "-") for key, name in found.items()} | _ALIASES


def explain_unknown_option(error: UnknownOptionError) -> tuple[str, str]:
    """Which option is unknown, and the nearest known one."""
    token = error.token.keyword or error.token.value
    name = token.split("=")[0].replace("_", "-")
    if name == "--plugin":
        return (
            f"Unknown option {token}.",
            "--plugin goes with train, bench, resume, config and methods.",
        )
    known = [n for argument in error.argument_collection or () for n in argument.names]
    known = [n for n in known if n.startswith("--")] + ["--help", "--debug"]
    guess = _all_aliases().get(name)
    if guess not in known:
        section, dot, key = name.partition(".")
        inside = [n for n in known if n.startswith(f"{section}.")] if dot else []
        close = nearest(key, [n.partition(".")[2] for n in inside])
        guess = f"{section}.{close}" if close else nearest(name, known)
    hint = f"Did you mean {guess}?" if guess else "See the command's --help for its options."
    return f"Unknown option {token}.", hint
