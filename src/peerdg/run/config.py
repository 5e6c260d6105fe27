"""Define `RunConfig`: all options of a run, resolved from layers of plain values.

Torch is not imported, so that a wrong option or an existing output folder is reported at once.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

import tomli_w

from peerdg.augment.augment_options import AugmentSettings, options_of_kind
from peerdg.averages.average_options import AverageSettings
from peerdg.data.benchmarks import BENCHMARKS, OWN_DATA, OwnDataSettings, benchmark
from peerdg.errors import ConfigError
from peerdg.methods.recipes import COMBINATIONS, RECIPES, expand
from peerdg.methods.registry import (
    Plugin,
    loaded,
    loaded_plugin,
    method_names,
    plugin_of,
    registered,
    settings_of,
)
from peerdg.models.names import OWN, check_backbone
from peerdg.options import build, did_you_mean, difference, merge, nearest, option, to_dict
from peerdg.run.hardware import DEVICES
from peerdg.run.presets import Choices, choose, preset
from peerdg.terminal import storable, visible
from peerdg.train.settings import PhaseSettings, TransformSettings

if TYPE_CHECKING:
    from peerdg.data.splits import Splits


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All options of a run."""

    benchmark: str = option("digits-mini", "data set")
    root: str | None = option(None, "folder with the data set's files")
    targets: tuple[str, ...] | None = option(None, "target domains; default: all available")
    method: str = option("peer", "training method")
    recipe: str | None = None  # recipe given by the user, which sets `method` and `average`
    plugin: str | None = None  # file that defines `method`, and its SHA-256
    backbone: str = option("digits-cnn", "network")
    weights: str = option("none", "none, imagenet, or a .safetensors or .pth file")
    budget: str = option("standard", "quick, standard or paper (own images: quick)")
    seed: int = option(0, "seed for all random numbers", at_least=0)
    train_seed: int | None = option(
        None, "separate seed for the main phase, for runs that share their start", at_least=0
    )
    device: str = option("auto", DEVICES)
    threads: int | None = option(None, "CPU threads; default: all", at_least=1)
    precision: Literal["float32", "bf16"] = option(
        "float32", "bf16: forward pass in bfloat16, weights in float32"
    )
    compile: bool = option(False, "torch.compile the network; needs a C++ compiler on a CPU")
    evaluate_every: int = option(10, "epochs between evaluations; default: k", at_least=1)
    checkpoint_minutes: float = option(1.0, "minutes between checkpoints", at_least=0)
    batch_statistics: Literal["clean", "trained"] = option(
        "clean", "batch statistics in evaluations: recomputed on clean images, or from training"
    )
    crafted: Literal["disjoint", "all", "off"] = option(
        "disjoint", "crafted validation: distortions not in RandAugment, all ten, or off"
    )
    crafted_images: int = option(
        500, "maximum number of validation images to distort; 0: all", at_least=0
    )
    select: Literal["last", "source-val", "crafted-val"] = option(
        "last", "epoch to deploy: the last, or the best on (crafted) validation images"
    )
    share_pretraining: bool = option(
        True, "reuse pre-training of an identical run, or store it for others"
    )
    oracle: bool | None = option(None, "also train on the targets: an oracle, not a fair baseline")
    keep_snapshots: bool = option(
        False, "save the trained network's weights at every evaluation, for `peerdg analyze`"
    )
    logger: Literal["tensorboard", "wandb"] | None = option(
        None, "also log to TensorBoard or Weights & Biases"
    )
    data: Any = None
    pretrain: PhaseSettings = field(default_factory=PhaseSettings)
    train: PhaseSettings = field(default_factory=PhaseSettings)
    transform: TransformSettings = field(default_factory=TransformSettings)
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    average: AverageSettings = field(default_factory=AverageSettings)
    method_settings: Any = None

    def tables(self, *, unset: bool = False) -> dict[str, Any]:
        """Return nested plain values, as in a config file. `unset` includes None values."""
        values = to_dict(self, unset=unset)
        values[self.method] = values.pop("method_settings", {})
        values[self.benchmark] = values.pop("data", {})
        scalars = {k: v for k, v in values.items() if not isinstance(v, dict)}
        return scalars | {k: v for k, v in values.items() if isinstance(v, dict) and v}

    @property
    def name(self) -> str:
        """Name of the recipe, if any, or else of the method."""
        return self.recipe or self.method

    @property
    def main_seed(self) -> int:
        """Seed of the main phase: data order, augmentation and the method's own layers."""
        return self.seed if self.train_seed is None else self.train_seed

    @property
    def deployed_average(self) -> str | None:
        """Kind of average that is deployed. None if the trained network is deployed."""
        own: str | None = self.method_settings.own_average
        return self.average.kind[0] if self.average.kind else own

    @property
    def augments(self) -> bool:
        """Whether the method trains on augmented images."""
        return bool(self.method_settings.augments)

    def toml(self) -> str:
        """Return the text of a config file that repeats this run."""
        text = tomli_w.dumps(self.tables())
        for line in text.splitlines():
            if storable(line) != line:
                raise ConfigError(f"{storable(line)}: not valid UTF-8.", hint="Rename the file.")
        return text

    @property
    def hash(self) -> str:
        """Hash of the options that affect the result."""
        decisive = {k: v for k, v in self.tables().items() if k not in MAY_CHANGE}
        text = json.dumps(decisive, default=str)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


# Options that may change when a run is resumed, because they do not affect its result.
MAY_CHANGE = {"device", "threads", "checkpoint_minutes", "root", "share_pretraining", "logger"}
# Data set options that are paths. Data is compared by fingerprint, not by path.
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
# Option names that users may know from papers and other projects.
ALIASES = {
    "learning_rate": "train.lr", "epochs": "train.epochs", "batch_size": "train.batch_size",
    "lr": "train.lr", "target": "targets", "data": "benchmark", "model": "backbone",
}  # fmt: skip
# A file with all of these keys is a complete config. Nothing is chosen from the images then.
_COMPLETE = {"benchmark", "backbone", "budget", "pretrain", "train"}


def resolve(*layers: Mapping[str, Any], choices: Choices | None = None) -> RunConfig:
    """Merge defaults, the preset and `layers` into a complete `RunConfig`. Later layers win.

    Args:
        layers: Nested plain values from a config file, flags or Python.
        choices: Options chosen for the user's images, to use instead of the data set's preset.

    Raises:
        ConfigError: If a key is unknown (the error suggests the nearest one), a value is out of
            range or has the wrong type, or a section belongs to another method or data set.
    """
    budgets = list(dict.fromkeys(layer["budget"] for layer in layers if "budget" in layer))
    if len(budgets) > 1:  # the file's values would override the other budget
        raise ConfigError(
            f"The config file is for the budget '{budgets[0]}', not '{budgets[1]}'.",
            hint="Remove --budget or --config.",
        )
    layers = expand(layers)
    given = merge(*layers)
    data = benchmark(_text(given, "benchmark", RunConfig.benchmark))
    method = _text(given, "method", RunConfig.method)
    if method in COMBINATIONS:
        raise ConfigError(
            f"'{method}' is not a single run: it combines {COMBINATIONS[method].members} runs.",
            hint=f"Use peerdg bench --methods {method}, which trains and combines them.",
        )
    _require_plugin(layers, method)
    method_kind = settings_of(method)
    budget = _text(given, "budget", RunConfig.budget)
    sections = {**SECTIONS, method: method_kind, data.name: data.settings}
    _check_keys(given, sections, method=method, data=data.name)
    base = preset(data.name, budget) if choices is None else choices.base(budget)
    others = set(method_names()) - {method}
    values = merge({k: v for k, v in base.items() if k not in others}, given)
    # A preset has options for all kinds of augmentation. Keep those of the chosen kind.
    kind = given.get("augment", {}).get("kind", method_kind.own_augment)
    own = options_of_kind(str(kind), base.get("augment", {}))
    values["augment"] = merge({"kind": kind}, own, given.get("augment", {}))
    for layer in layers:  # `evaluate_every` defaults to the method's period
        if "evaluate_every" in layer:
            values["evaluate_every"] = layer["evaluate_every"]
        elif method_kind.period_option in layer.get(method, {}):
            values["evaluate_every"] = layer[method][method_kind.period_option]
    plugin = plugin_of(method)  # when resuming, `values` has the plugin's identity
    values["plugin"] = None if plugin is None else values.get("plugin", plugin.identity)
    parts = {key: build(kind, values.pop(key, {}), where=key) for key, kind in sections.items()}
    parts["data"], parts["method_settings"] = parts.pop(data.name), parts.pop(method)
    config = replace(build(RunConfig, values, where=""), **parts)
    data.find_targets(config.data, config.targets)  # raises for an unknown name
    if config.backbone != OWN:
        check_backbone(config.backbone, config.weights)
    average, deployed = config.average, config.deployed_average
    average.check_used(config.method_settings.own_average)
    if config.method_settings.own_average is not None:
        config.method_settings.check_average(deployed, last=average.last)
    if average.also and not deployed:
        raise ConfigError(
            f"average.also names {', '.join(average.also)}, but no average is deployed.",
            hint="Add --average snapshots.",
        )
    recipe = RECIPES.get(config.recipe or "")
    is_recipe = recipe is not None and recipe.describes(config.tables())
    return config if is_recipe else replace(config, recipe=None)


def resolve_given(
    given: Mapping[str, Any],
    *,
    file: Mapping[str, Any] | None = None,
    splits: "Splits | None" = None,
) -> tuple[RunConfig, Choices | None]:
    """Resolve options `given` as flags or in Python. They override those in a config file.

    For the user's own images, missing options are chosen to suit them and returned with reasons.
    """
    file = file or {}
    is_complete = file.keys() >= _COMPLETE
    wanted = merge(file, given)
    typed = isinstance(wanted.get("root"), str) and isinstance(wanted.get(OWN_DATA, {}), Mapping)
    is_own = splits is not None or (typed and wanted.get("benchmark") == OWN_DATA)
    choices = None
    if is_complete or not is_own:
        config = resolve(file, given)
        BENCHMARKS[config.benchmark].refuse_unused_root(config.root)
    else:
        config, choices = resolve_own_data(given, splits, file=file)
    section = (given if is_complete else wanted).get("augment", {})
    if section and not config.augments:
        names = ", ".join(f"augment.{name}" for name in section)
        raise ConfigError(
            f"'{config.name}' does not use the run's augmentation: {names} would have no effect.",
            hint="Remove them, or choose a method that augments: see peerdg methods.",
        )
    return config, choices


def resolve_own_data(
    given: Mapping[str, Any],
    splits: "Splits | None" = None,
    *,
    file: Mapping[str, Any] | None = None,
) -> tuple[RunConfig, Choices]:
    """Complete the config for the images under `given["root"]`, or for `splits` in memory."""
    from peerdg.data.own_data import glance  # imported here because it needs torch

    layers = [_with_full_paths(layer) for layer in (file or {}, {**given, "benchmark": OWN_DATA})]
    wanted = merge({"budget": "quick"}, *layers)
    if splits is None:
        settings = build(OwnDataSettings, wanted.get(OWN_DATA, {}), where=OWN_DATA)
        images, side = glance(Path(wanted["root"]), settings)
    else:
        images, side = len(splits.train), splits.train.image_size[0]
    budget, own_network = str(wanted["budget"]), wanted.get("backbone") == OWN
    choices = choose(images=images, side=side, budget=budget, own_network=own_network)
    layers[0].setdefault("budget", wanted["budget"])
    return resolve(*layers, choices=choices), choices


def _with_full_paths(given: Mapping[str, Any]) -> dict[str, Any]:
    """Make paths absolute, so that runs can be resumed from any folder. Keep domain names."""

    def full(path: Any) -> Any:
        if isinstance(path, list | tuple):
            return [full(item) for item in path]
        place = Path(path).expanduser() if isinstance(path, str) else None
        return str(place.resolve()) if place and place.exists() else path

    own = given.get(OWN_DATA)
    result = {key: full(v) if key in ("root", "targets") else v for key, v in given.items()}
    if isinstance(own, Mapping) and own.get("validation_folder"):
        result[OWN_DATA] = {**own, "validation_folder": full(own["validation_folder"])}
    return result


def _require_plugin(layers: tuple[Mapping[str, Any], ...], method: str) -> None:
    """Reject a method that is defined in a plugin, unless the user has given the plugin."""
    # The first layer that names a plugin belongs to the run, later ones to the user.
    of_run = next((layer for layer in layers if "plugin" in layer), None)
    if of_run is None or (loaded_plugin() and method in method_names()):
        return
    file = visible(_text(of_run, "plugin", "").partition(" sha256:")[0])  # see `Plugin.identity`
    if method in method_names():
        raise ConfigError(f"Method '{method}' is built in. Remove the key 'plugin' ({file}).")
    raise ConfigError(
        f"Method '{visible(method)}' is defined in the plugin {file}, which is not loaded.",
        hint=f"Pass it with --plugin {quote(file)}, or plugin='{file}' in Python. It is executed, "
        "so read it first if it is not yours.",
    )


def without_method(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Drop options that do not affect the data, because the method's plugin may be missing."""
    left_out = {"method", "recipe", "plugin", "average", "augment", str(tables.get("method"))}
    return {key: value for key, value in tables.items() if key not in left_out}


def notes(config: RunConfig) -> list[str]:
    """Return warnings about a valid but surprising configuration."""
    messages = []
    if config.select == "crafted-val":
        messages.append(
            "--select crafted-val: in our studies crafted validation ordered settings well on "
            "digits (rank correlation 0.9), but wrongly on photos (-0.6). Use --select last there."
        )
    if config.method_settings.caution is not None:
        messages.append(config.method_settings.caution)
    if config.oracle:
        messages.append(
            "This run is an oracle: it trains on the targets that it is evaluated on. It is marked "
            "as such in records, tables and its card."
        )
    if config.method_settings.averages_start or config.deployed_average != "snapshots":
        return messages
    epochs, k = config.train.epochs, config.average.k or int(config.method_settings.period)
    option = "--average.k" if config.average.k else f"--{config.method}.k"
    if k > epochs:
        messages.append(
            f"k = {k} is larger than the {epochs} epochs, so no snapshot is averaged and the "
            f"pre-trained model is deployed. Lower {option} or raise --epochs."
        )
    elif epochs % k:
        messages.append(
            f"{epochs} epochs are not a multiple of k = {k}. The last {epochs % k} are left out of "
            "the deployed average."
        )
    return messages


def changed_options(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """List changed options that affect the result, one per line, with both values."""
    return "\n  ".join(difference(old, new, ignored=MAY_CHANGE))


def refuse_difference(old: RunConfig, new: RunConfig) -> None:
    """Refuse to resume a run if its `new` options differ from the `old` ones."""
    if changes := changed_options(old.tables(), new.tables()):
        raise ConfigError(
            f"This run was started with different options:\n  {changes}",
            hint="Resume without these options (and with the same --plugin file, if any), or "
            "start a new run in another --out folder.",
        )


@contextmanager
def plugin_method(path: Path) -> Iterator[Plugin]:
    """Register the method of a plugin file for the duration of the block.

    The file is executed. Pass only a path that the user gave, never one read from a file.
    """
    with loaded(path) as plugin:
        taken = {*SECTIONS, *SCALARS, *(name.replace("-", "_") for name in BENCHMARKS)}
        if plugin.name.replace("-", "_") in taken:
            raise ConfigError(
                f"'{plugin.name}' is the name of an option, so no method can have this name.",
                hint=f"Rename {plugin.path.name}. A method is named after its file.",
            )
        with registered(plugin):
            yield plugin


def _text(given: Mapping[str, Any], key: str, default: str) -> str:
    value = given.get(key, default)
    if not isinstance(value, str):
        raise ConfigError(f"'{key}' is {value!r}, but must be text.")
    return value


def _check_keys(
    given: Mapping[str, Any], sections: Mapping[str, Any], *, method: str, data: str
) -> None:
    for key, value in given.items():
        is_method = key in method_names()
        if key not in sections and (is_method or key in BENCHMARKS):
            kind, used = ("method", method) if is_method else ("data set", data)
            change = f", or use --method {key}" if is_method else ""
            raise ConfigError(
                f"Options are given for the {kind} '{key}', but the {kind} is '{used}'.",
                hint=f"Remove the section [{key}]{change}.",
            )
        if key in sections and not isinstance(value, Mapping):
            raise ConfigError(f"'{key}' must be a section with options, not a value.")
        if key in SCALARS and isinstance(value, Mapping):
            raise ConfigError(f"'{key}' must be a single value, not a section.")
        if key not in sections and key not in SCALARS:
            raise ConfigError(f"Unknown option '{key}'.", hint=suggest_key(key, sections))


def suggest_key(key: str, sections: Mapping[str, Any]) -> str:
    """Suggest the nearest option, section, or option inside a section."""
    inside = {f.name: f"{name}.{f.name}" for name, kind in sections.items() for f in fields(kind)}
    top = [*sorted(SCALARS), *sections]
    meant = ALIASES.get(key) or inside.get(key)
    if not meant and not nearest(key, top):
        meant = inside.get(nearest(key, inside) or "")
    return f"Did you mean '{meant}'?" if meant else did_you_mean(key, top)
