"""One run, completely described: a frozen `RunConfig`, from layers of plain values.

Free of torch: a wrong option or a taken output folder is reported before torch is imported.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tomli_w

from peerdg.augment.augment_options import AugmentSettings, options_of_kind
from peerdg.averages.average_options import AverageSettings
from peerdg.data.benchmarks import BENCHMARKS, OWN_DATA, OwnDataSettings, benchmark
from peerdg.errors import ConfigError
from peerdg.methods.base import MethodSettings
from peerdg.methods.recipes import COMBINATIONS, RECIPES, expand
from peerdg.methods.registry import file_of, method_names, plugin_of, settings_of
from peerdg.models.names import OWN, check_backbone
from peerdg.options import (
    build,
    did_you_mean,
    difference,
    merge,
    nearest,
    option,
    to_dict,
)
from peerdg.run.choices import Choices, choose
from peerdg.run.hardware import DEVICES
from peerdg.run.presets import BUDGETS, preset
from peerdg.terminal import storable, visible
from peerdg.train.settings import PhaseSettings, TransformSettings

if TYPE_CHECKING:
    from peerdg.data.splits import Splits


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides what a run computes."""

    benchmark: str = option("digits-mini", "data set")
    root: str | None = option(None, "folder with the data set's files")
    targets: tuple[str, ...] | None = option(None, "target domains; default: all that are there")
    method: str = option("peer", "training method")
    recipe: str | None = None  # the name under which `method` and `average` were asked for
    plugin: str | None = None  # the file that defines `method`, and its SHA-256
    backbone: str = option("digits-cnn", "network")
    weights: str = option("none", "initial weights: none, imagenet, or a .safetensors or .pth file")
    budget: str = option("standard", "preset: quick, standard or paper")
    seed: int = option(0, "seed of all randomness", at_least=0)
    train_seed: int | None = option(
        None, "another seed for the main phase: runs that share their start differ", at_least=0
    )
    device: str = option("auto", DEVICES)
    threads: int | None = option(None, "CPU threads; default: all", at_least=1)
    precision: Literal["float32", "bf16"] = option(
        "float32", "bf16: forward pass in bfloat16, weights in float32"
    )
    compile: bool = option(False, "torch.compile the network; needs a C++ compiler on a CPU")
    evaluate_every: int = option(10, "epochs between evaluations; default: k", at_least=1)
    checkpoint_minutes: float = option(1.0, "at most this much work is lost", at_least=0)
    batch_statistics: Literal["clean", "trained"] = option(
        "clean",
        "batch normalisation of evaluated networks: recomputed on clean images, or as trained",
    )
    crafted: Literal["disjoint", "all", "off"] = option(
        "disjoint",
        "crafted validation: families that RandAugment does not overlap, all ten, or off",
    )
    crafted_images: int = option(
        500, "validation images that are crafted, at most; 0 takes all", at_least=0
    )
    share_pretraining: bool = option(
        True, "start from the stored pre-training of an equal run, or store it for others"
    )
    oracle: bool | None = option(
        None, "learn from the targets as well: an oracle, which is never a fair baseline"
    )
    keep_snapshots: bool = option(False, "keep the trained network's weights at every evaluation")
    data: Any = None
    pretrain: PhaseSettings = field(default_factory=PhaseSettings)
    train: PhaseSettings = field(default_factory=PhaseSettings)
    transform: TransformSettings = field(default_factory=TransformSettings)
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    average: AverageSettings = field(default_factory=AverageSettings)
    method_settings: Any = None

    def tables(self, *, unset: bool = False) -> dict[str, Any]:
        """Nested plain values, with the sections named as in a config file.

        Args:
            unset: Include options that are not set, as None.
        """
        values = to_dict(self, unset=unset)
        values[self.method] = values.pop("method_settings", {})
        values[self.benchmark] = values.pop("data", {})
        scalars = {k: v for k, v in values.items() if not isinstance(v, dict)}
        return scalars | {k: v for k, v in values.items() if isinstance(v, dict) and v}

    @property
    def name(self) -> str:
        """What people call this method: the recipe's name, or the objective's."""
        return self.recipe or self.method

    @property
    def main_seed(self) -> int:
        """Seed of the main phase: its order, augmentation and a method's own layers."""
        return self.seed if self.train_seed is None else self.train_seed

    @property
    def deployed_average(self) -> str | None:
        """The kind of average that is deployed; None if it is the trained network."""
        own: str | None = self.method_settings.own_average
        return self.average.kind[0] if self.average.kind else own

    @property
    def snapshot_period(self) -> int | None:
        """Epochs between two snapshots of the deployed average; None if it has none."""
        if self.deployed_average != "snapshots":
            return None
        return self.average.k or int(self.method_settings.period)

    @property
    def augments(self) -> bool:
        """Whether the method trains on augmented images."""
        return bool(self.method_settings.augments)

    def toml(self) -> str:
        """A config file that repeats this run.

        Raises:
            ConfigError: If a path in it is not UTF-8, which the file could not hold.
        """
        text = tomli_w.dumps(self.tables())
        _require_utf8(text)
        return text

    @property
    def hash(self) -> str:
        """Short name of everything that decides the result."""
        return hash_of(self.tables())


def _require_utf8(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        line = text[: error.end].count("\n")
        raise ConfigError(
            f"{storable(text.splitlines()[line])}: this name is not UTF-8, "
            "which the run's config.toml must be.",
            hint="Rename it.",
        ) from error


def hash_of(tables: Mapping[str, Any]) -> str:
    """Short name of the options in `tables` that decide the result."""
    text = json.dumps({k: v for k, v in tables.items() if k not in MAY_CHANGE}, default=str)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


# What may change between start and resume: where and how safely the run goes on, not what it does.
MAY_CHANGE = {"device", "threads", "checkpoint_minutes", "root", "share_pretraining"}
# Options of data sets that name places: what is there decides, by the fingerprints of the data.
DATA_PLACES = {
    f"{data.name}.{f.name}"
    for data in BENCHMARKS.values()
    for f in fields(data.settings)
    if f.metadata.get("is_place")
}
SECTIONS: dict[str, type[Any]] = {
    "train": PhaseSettings,
    "pretrain": PhaseSettings,
    "transform": TransformSettings,
    "augment": AugmentSettings,
    "average": AverageSettings,
}
SCALARS = {f.name for f in fields(RunConfig)} - {*SECTIONS, "data", "method_settings"}
# Names from papers and other projects that people type; checked before similar spelling.
_ALIASES = {
    "learning_rate": "train.lr", "epochs": "train.epochs", "batch_size": "train.batch_size",
    "lr": "train.lr", "target": "targets", "data": "benchmark", "model": "backbone",
}  # fmt: skip


def resolve(*layers: Mapping[str, Any], choices: Choices | None = None) -> RunConfig:
    """A complete `RunConfig` from defaults, the preset and `layers`; later layers win.

    Args:
        layers: Nested plain values, from a config file, flags or Python.
        choices: What the data decides, in place of the data set's preset.

    Raises:
        ConfigError: For an unknown key (with the nearest one), a value of the wrong type or out of
            range, or a section that belongs to another method or data set.
    """
    _refuse_two_budgets(layers)
    layers = expand(layers)
    given = merge(*layers)
    data = benchmark(_text(given, "benchmark", RunConfig.benchmark))
    method = _text(given, "method", RunConfig.method)
    if method in COMBINATIONS:
        raise _needs_several_runs(method, layers)
    _require_plugin(layers, method)
    method_kind = settings_of(method)
    budget = _text(given, "budget", RunConfig.budget)
    if budget not in BUDGETS:
        raise ConfigError(f"Unknown budget '{budget}'.", hint=did_you_mean(budget, BUDGETS))
    sections = {**SECTIONS, method: method_kind, data.name: data.settings}
    _check_keys(given, sections, method=method, data=data.name)
    base = preset(data.name, budget) if choices is None else choices.base(budget)
    others = set(method_names()) - {method}
    values = merge({k: v for k, v in base.items() if k not in others}, given)
    values["augment"] = _augment_options(base, given, default=method_kind.own_augment)
    values.update(_evaluation_period(layers, method))
    values["plugin"] = _plugin(values, method)
    parts: dict[str, Any] = {}
    for key, kind in sections.items():
        parts[key] = build(kind, values.pop(key, {}), where=key)
    parts["data"], parts["method_settings"] = parts.pop(data.name), parts.pop(method)
    config = build(RunConfig, values, where="")
    if config.backbone != OWN:
        check_backbone(config.backbone, config.weights)
    _check_averages(parts["average"], parts["method_settings"])
    return _with_recipe(replace(config, **parts))


def _require_plugin(layers: tuple[Mapping[str, Any], ...], method: str) -> None:
    """Refuse a method that only a plugin has, which nobody but the user can give.

    Raises:
        ConfigError: With the plugin's name.
    """
    # The first is that of the run; what was given for it is another one.
    of_run = next((layer for layer in layers if "plugin" in layer), None)
    if method in method_names() or of_run is None:
        return
    file = visible(file_of(_text(of_run, "plugin", "")))
    raise ConfigError(
        f"The method '{visible(method)}' is that of a plugin, {file}, which was not given.",
        hint=f"Give the file: --plugin {file}, or plugin='{file}' in Python. It is executed, so "
        "look at it first if it is not yours.",
    )


def _plugin(given: Mapping[str, Any], method: str) -> Any:
    """What the run keeps of its plugin: as a run to be resumed has it, or else as it is now."""
    plugin = plugin_of(method)
    return None if plugin is None else given.get("plugin", plugin.identity)


def without_method(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run that its data depends on: its method may be that of a plugin."""
    left_out = {"method", "recipe", "plugin", "average", "augment", str(tables.get("method"))}
    return {key: value for key, value in tables.items() if key not in left_out}


def _check_averages(average: AverageSettings, method: MethodSettings) -> None:
    """Refuse options that would have no effect with the averages of the run."""
    own = method.own_average
    average.check_used(own)
    if own is not None:
        method.check_average(average.kind[0] if average.kind else own, last=average.last)
    if average.also and not (average.kind or own):  # they only accompany one
        raise ConfigError(
            f"average.also names {', '.join(average.also)}, but no average is deployed.",
            hint="Add --average snapshots.",
        )


def refuse_unused_augmentation(config: RunConfig, given: Mapping[str, Any]) -> None:
    """Refuse options of the augmentation that a user gave to a method without one.

    Presets have them for every method, and so has a run's own config file: these are no wish.

    Args:
        config: What the options were resolved to.
        given: What the user said, nested as in a config file.

    Raises:
        ConfigError: If there are any.
    """
    section = given.get("augment", {})
    if section and not config.augments:
        names = ", ".join(f"augment.{name}" for name in section)
        raise ConfigError(
            f"'{config.name}' with these options does not augment images by the run's "
            f"augmentation; {names} would have no effect.",
            hint="Leave the options of the augmentation out, or choose a method that uses it: "
            "see peerdg methods.",
        )


def _augment_options(
    base: Mapping[str, Any], given: Mapping[str, Any], *, default: str
) -> dict[str, Any]:
    """The augmentation's options: of the preset `base` only those of the kind that is used."""
    wanted = given.get("augment", {})
    kind = wanted.get("kind", default)
    return merge({"kind": kind}, options_of_kind(str(kind), base.get("augment", {})), wanted)


def _with_recipe(config: RunConfig) -> RunConfig:
    """`config` without its recipe's name if the options differ from the recipe's."""
    recipe = RECIPES.get(config.recipe or "")
    still = recipe is not None and recipe.describes(config.tables())
    return config if still else replace(config, recipe=None)


def _needs_several_runs(name: str, layers: tuple[Mapping[str, Any], ...]) -> ConfigError:
    """The error for a method that consists of several runs."""
    combination = COMBINATIONS[name]
    config = resolve(*layers, {"method": combination.member})
    data = config.root or config.benchmark
    commands = combination.commands(name, data, seed=config.seed, lr=config.train.lr)
    return ConfigError(
        f"'{name}' is made of {combination.members} runs, which are combined.",
        hint="Train them and combine them, with your other options in each line:\n  "
        + "\n  ".join(commands),
    )


def _evaluation_period(layers: tuple[Mapping[str, Any], ...], method: str) -> dict[str, Any]:
    """`evaluate_every` follows the method's period where only that is given; a later layer wins."""
    own_period = settings_of(method).period_option
    period: dict[str, Any] = {}
    for layer in layers:
        if "evaluate_every" in layer:
            period = {"evaluate_every": layer["evaluate_every"]}
        elif own_period in layer.get(method, {}):
            period = {"evaluate_every": layer[method][own_period]}
    return period


def _refuse_two_budgets(layers: tuple[Mapping[str, Any], ...]) -> None:
    """Refuse a budget beside a config file of another: the file's values would override it."""
    budgets = list(dict.fromkeys(layer["budget"] for layer in layers if "budget" in layer))
    if len(budgets) > 1:
        raise ConfigError(
            f"The config file is for the budget '{budgets[0]}', not '{budgets[1]}'.",
            hint="Leave --budget out, or start without the file.",
        )


def notes(config: RunConfig) -> list[str]:
    """Messages about a legal but surprising configuration."""
    messages = list(config.method_settings.notes(config.train.epochs))
    if config.oracle:
        messages.append(
            "An oracle: it learns from the targets that it is judged on. Records, tables and its "
            "card say so."
        )
    if config.method_settings.averages_start:
        return messages
    return [*messages, *_snapshot_notes(config)]


def _snapshot_notes(config: RunConfig) -> list[str]:
    """Whether epochs are trained that no snapshot of the deployed average sees."""
    epochs, k = config.train.epochs, config.snapshot_period
    if k is None:
        return []
    option = "--average.k" if config.average.k else f"--{config.method}.k"
    if k > epochs:
        return [
            f"k = {k} is larger than the {epochs} epochs: no snapshot is averaged, and the "
            f"deployed model stays the pre-trained one. Lower {option} or raise --epochs."
        ]
    if epochs % k:
        return [
            f"{epochs} epochs are not a multiple of k = {k}: the network trains through the last "
            f"{epochs % k}, but they do not enter the deployed average."
        ]
    return []


def refuse_difference(old: RunConfig, new: RunConfig) -> None:
    """Check that a run with the options `old` can be resumed with `new`.

    Raises:
        ConfigError: With every differing key, its old and its new value.
    """
    changes = [c for c in difference(old.tables(), new.tables()) if c.key not in MAY_CHANGE]
    for change in changes:
        if change.key == "plugin" and change.old and change.new:
            raise ConfigError(
                f"The plugin is not the one that the run was started with:\n  {change}",
                hint="Give that file with --plugin, or start a new run in another --out folder.",
            )
    if changes:
        raise ConfigError(
            "This run was started with other options:\n  " + "\n  ".join(map(str, changes)),
            hint="Resume without these options, or start a new run in another --out folder.",
        )


def _text(given: Mapping[str, Any], key: str, default: str) -> str:
    value = given.get(key, default)
    if not isinstance(value, str):
        raise ConfigError(f"'{key}' is {value!r}; it must be text.")
    return value


def _check_keys(
    given: Mapping[str, Any], sections: Mapping[str, Any], *, method: str, data: str
) -> None:
    for key, value in given.items():
        if key in method_names() and key != method:
            raise ConfigError(
                f"Options of '{key}' are given, but the method is '{method}'.",
                hint=f"Remove the section [{key}], or use --method {key}.",
            )
        if key in BENCHMARKS and key != data:
            raise ConfigError(
                f"Options of the data set '{key}' are given, but the data set is '{data}'.",
                hint=f"Remove the section [{key}].",
            )
        if key in sections and not isinstance(value, Mapping):
            raise ConfigError(f"'{key}' is a section with options, not a value.")
        if key not in sections and (key not in SCALARS or isinstance(value, Mapping)):
            raise ConfigError(f"Unknown option '{key}'.", hint=suggest_key(key, sections))


def suggest_key(key: str, sections: Mapping[str, Any]) -> str:
    """The nearest option anywhere: at the top, a section, or inside one."""
    if meant := _ALIASES.get(key):
        return f"Did you mean '{meant}'?"
    top = [*sorted(SCALARS), *sections]
    if nearest(key, top):
        return did_you_mean(key, top)
    inside = {f.name: f"{name}.{f.name}" for name, kind in sections.items() for f in fields(kind)}
    guess = nearest(key, inside)
    return f"Did you mean '{inside[guess]}'?" if guess else did_you_mean(key, top)


def resolve_own_data(
    given: Mapping[str, Any],
    splits: "Splits | None" = None,
    *,
    file: Mapping[str, Any] | None = None,
) -> tuple[RunConfig, Choices]:
    """Complete the config for the images under `given["root"]`, or for `splits` in memory.

    Args:
        given: Options given by the user, nested as in a config file.
        splits: Domains from Python; their images are not looked for.
        file: Options from a config file; `given` wins over them.

    Returns:
        The config, and what was chosen in it and why.
    """
    from peerdg.data.own_data import glance  # it imports torch

    layers = [_with_whole_paths(layer) for layer in (file or {}, {**given, "benchmark": OWN_DATA})]
    wanted = merge(*layers)
    if splits is None:
        settings = build(OwnDataSettings, wanted.get(OWN_DATA, {}), where=OWN_DATA)
        images, side = glance(Path(wanted["root"]), settings)
    else:
        images, side = len(splits.train), splits.train.image_size[0]
    budget = str(wanted.get("budget", RunConfig.budget))
    own_network = wanted.get("backbone") == OWN
    choices = choose(images=images, side=side, budget=budget, own_network=own_network)
    return resolve(*layers, choices=choices), choices


def _with_whole_paths(given: Mapping[str, Any]) -> dict[str, Any]:
    """Paths that mean the same wherever the run is resumed; names of domains stay.

    Values of a wrong type stay as they are: `resolve` refuses them with a message.
    """
    whole = dict(given)
    if "root" in whole:
        whole["root"] = _whole(whole["root"])
    if isinstance(whole.get("targets"), str):
        whole["targets"] = [whole["targets"]]
    if isinstance(whole.get("targets"), list | tuple):
        whole["targets"] = [_whole(target) for target in whole["targets"]]
    own = whole.get(OWN_DATA)
    if isinstance(own, Mapping) and own.get("validation_folder"):
        whole[OWN_DATA] = {**own, "validation_folder": _whole(own["validation_folder"])}
    return whole


def _whole(path: Any) -> Any:
    if not isinstance(path, str):
        return path
    place = Path(path).expanduser()
    return str(place.resolve()) if place.exists() else path
