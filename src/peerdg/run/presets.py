"""Load data set presets from `peerdg/presets/*.toml`, and choose options for users' images.

Choices depend on the number and size of the user's images, and each has a reason. They fill in
options that the user did not set. They are stored in the config, so a resumed run keeps them.
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
SMALL_SIDE = 48  # in pixels. Images up to this size are too small for a photo network
USUAL_IMAGES = 1500  # number of images that the presets for users' own images are designed for
MIN_BATCHES = 4  # batches per epoch


def preset(benchmark: str, budget: str) -> dict[str, Any]:
    """Return the preset options for a budget. A preset overrides the files that it extends."""
    if budget not in BUDGETS:
        raise ConfigError(f"Unknown budget '{budget}'.", hint=did_you_mean(budget, BUDGETS))
    layers = map(_parse, preset_files(benchmark).values())
    return merge(*(layer.get(table, {}) for layer in layers for table in ("shared", budget)))


@cache
def _parse(text: str) -> dict[str, Any]:
    return tomllib.loads(text)


@cache
def preset_files(benchmark: str) -> dict[str, str]:
    """Read a preset and the files it extends, by name, most general first."""
    text = files("peerdg.presets").joinpath(f"{benchmark}.toml").read_text("utf-8")
    parent = _parse(text).get("extends")
    return {**(preset_files(parent) if parent else {}), benchmark: text}


def origins(benchmark: str, budget: str) -> dict[str, str]:
    """Read the origin of each option in a preset, by dotted name, from the comments."""
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
    """Format an origin (`paper`, `paper: Digits`, `assumption: why`, `study x: y`) as a reason.

    A study `x` is in `results/x`. Studies select values by source images only.
    """
    kind, _, text = origin.partition(": ")
    if kind == "assumption":
        return text
    if kind.startswith("study "):
        return f"{text} ({kind})"
    return f"the {kind}'s value" + (f" ({text})" if text else "")


@dataclass(frozen=True)
class Choices:
    """Options chosen for the user's images.

    `options` override the `preset`, and the user's options override both. `reasons` explains each
    chosen option, by dotted name.
    """

    preset: str
    options: dict[str, Any]
    reasons: dict[str, str]

    def base(self, budget: str) -> dict[str, Any]:
        return merge(preset(self.preset, budget), self.options)

    def explain(self, config: Mapping[str, Any]) -> list[str]:
        """Format `--option value: reason` for each choice that `config` still contains.

        Also lists the method's announced options, with reasons from the preset.
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

    For the user's own network, only the schedule is chosen.
    """
    small = own_network or side <= SMALL_SIDE
    name = "own-data" if small else "own-photos"
    base, known = preset(name, budget), origins(name, budget)
    # Train for more epochs on few images, but keep a quick run short.
    factor = min(1.0 if budget == "quick" else 3.0, max(1 / 3, USUAL_IMAGES / images))
    period = base["evaluate_every"]  # k in these presets. Some methods have a different period
    epochs = {
        "train": period * max(3, round(base["train"]["epochs"] / period * factor)),
        "pretrain": max(1, round(base["pretrain"]["epochs"] * factor)),
    }
    batch = 1 << (max(2, images // MIN_BATCHES).bit_length() - 1)  # a power of two
    options: dict[str, Any] = {}
    schedule = f"{images:,} training images and the budget '{budget}' (--budget)"
    reasons = {"pretrain.epochs": schedule, "train.epochs": schedule}
    for phase in ("pretrain", "train"):
        size = base[phase]["batch_size"]
        options[phase] = {"epochs": epochs[phase], "batch_size": min(size, batch)}
        few = f"at least {MIN_BATCHES} batches per epoch with {images:,} images"
        usual = reason(known[f"{phase}.batch_size"])
        reasons[f"{phase}.batch_size"] = few if batch < size else usual
    if own_network:
        return Choices(name, options, reasons)
    reasons["backbone"] = f"{side} px images count as {'small' if small else 'photos'}"
    reasons["transform.size"] = "the usual input size of this network"
    if small:
        options["transform"] = {"size": 32}
    else:
        reasons["weights"] = "a few photos are not enough to train from scratch"
        reasons["transform.crop"] = "random crops, usual for photos (1 1: off)"
        reasons["transform.flip"] = "random flips, usual for photos (0 if left and right matter)"
    return Choices(name, options, reasons)
