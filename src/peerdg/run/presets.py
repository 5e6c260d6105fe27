"""Budgets per data set, from the TOML files in `peerdg/presets`, and choices for own images.

Choices follow from the number and size of a user's images, each with its reason. They fill in what
the user did not set. A run's config keeps them, so a resumed run does not choose again.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any

from peerdg.errors import ConfigError
from peerdg.methods.registry import settings_of
from peerdg.options import did_you_mean, dotted, merge

BUDGETS = ("quick", "standard", "paper")
SMALL_SIDE = 48  # pixels; a network for photos sees nothing in smaller images
USUAL_IMAGES = 1500  # for which the presets of own images were made
MIN_BATCHES = 4  # of a pass over the images


def preset(benchmark: str, budget: str) -> dict[str, Any]:
    """Merge the options of a budget: those of the files it extends, then of its own file."""
    if budget not in BUDGETS:
        raise ConfigError(f"Unknown budget '{budget}'.", hint=did_you_mean(budget, BUDGETS))
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


@dataclass(frozen=True)
class Choices:
    """Options for images of one kind, and why.

    `options` override the preset `preset`, and the user overrides them. `reasons` has a sentence
    for each, by its dotted name.
    """

    preset: str
    options: dict[str, Any]
    reasons: dict[str, str]

    def base(self, budget: str) -> dict[str, Any]:
        return merge(preset(self.preset, budget), self.options)

    def explain(self, config: Mapping[str, Any]) -> list[str]:
        """Write `--option value: reason` for each choice that became part of the `config`.

        Options of the method on which results depend have their reasons from the preset.
        """
        method, budget = str(config["method"]), str(config["budget"])
        known = origins(self.preset, budget)
        announced = [f.name for f in fields(settings_of(method)) if f.metadata.get("announced")]
        names = [name for name in (f"{method}.{each}" for each in announced) if name in known]
        chosen, final = dotted(self.base(budget)), dotted(config)
        lines = []
        for name, why in {**self.reasons, **{n: reason(known[n]) for n in names}}.items():
            value = chosen.get(name)
            if name in final and final[name] == value:
                text = " ".join(map(str, value)) if isinstance(value, list) else value
                lines.append(f"--{name.replace('_', '-')} {text}: {why}")
        return lines


def choose(*, images: int, side: int, budget: str, own_network: bool = False) -> Choices:
    """Choose backbone, image size and schedule for `images` training images of `side` pixels.

    A network that the user brings takes images as they are. Only the schedule is chosen for it.
    """
    small = own_network or side <= SMALL_SIDE
    name = "own-data" if small else "own-photos"
    base, known = preset(name, budget), origins(name, budget)
    factor = min(3.0, max(1 / 3, USUAL_IMAGES / images))  # few images are seen more often
    period = base["evaluate_every"]  # the k of these presets; some methods have another period
    epochs = {
        "train": period * max(3, round(base["train"]["epochs"] / period * factor)),
        "pretrain": max(1, round(base["pretrain"]["epochs"] * factor)),
    }
    batch = 1 << (max(2, images // MIN_BATCHES).bit_length() - 1)  # a power of two
    options: dict[str, Any] = {}
    schedule = f"{images:,} training images and the budget '{budget}'"
    reasons = {"pretrain.epochs": schedule, "train.epochs": schedule}
    for phase in ("pretrain", "train"):
        size = base[phase]["batch_size"]
        options[phase] = {"epochs": epochs[phase], "batch_size": min(size, batch)}
        few = f"at least {MIN_BATCHES} batches in {images:,} images"
        usual = reason(known[f"{phase}.batch_size"])
        reasons[f"{phase}.batch_size"] = few if batch < size else usual
    if own_network:
        return Choices(name, options, reasons)
    reasons["backbone"] = f"images of {side} px are {'small' if small else 'photos'}"
    reasons["transform.size"] = "what this network was made for"
    if small:
        options["transform"] = {"size": 32}
    else:
        reasons["weights"] = "a network for photos learns little from few of them alone"
        reasons["transform.crop"] = "random crops of photos; 1 1 switches them off"
        reasons["transform.flip"] = "mirrored photos are photos; 0 if left and right matter"
    return Choices(name, options, reasons)
