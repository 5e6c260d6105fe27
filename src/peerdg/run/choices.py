"""Options chosen by the number and size of a user's own images, each with its reason.

The choices fill in what the user did not set. They are kept in the run's config like anything else,
so a repeated or resumed run does not choose again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from peerdg.errors import ConfigError
from peerdg.methods.registry import settings_of
from peerdg.options import did_you_mean, merge
from peerdg.run.presets import BUDGETS, origins, preset, reason

SMALL_SIDE = 48  # pixels; a network for photos sees nothing in smaller images
USUAL_IMAGES = 1500  # for which the presets of own images were made
BATCHES = 4  # that one pass over the images should have at least


@dataclass(frozen=True)
class Choices:
    """Options for images of one kind, and why.

    Args:
        preset: The preset they start from.
        options: Nested as in a config file; they override the preset, and are overridden by the
            user's options.
        reasons: A sentence for each chosen option, by its dotted name.
    """

    preset: str
    options: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def base(self, budget: str) -> dict[str, Any]:
        """The preset with the choices."""
        return merge(preset(self.preset, budget), self.options)

    def explain(self, final: Mapping[str, Any]) -> list[str]:
        """`--option value: reason` for each choice that became part of the config `final`."""
        lines = []
        for name, why in {**self.reasons, **self._method_reasons(final)}.items():
            section, _, key = name.rpartition(".")
            table = final.get(section, {}) if section else final
            chosen = self.base(str(final["budget"]))
            wanted = (chosen.get(section, {}) if section else chosen).get(key)
            if key in table and table[key] == wanted:
                value = " ".join(map(str, wanted)) if isinstance(wanted, list) else wanted
                lines.append(f"--{name.replace('_', '-')} {value}: {why}")
        return lines

    def _method_reasons(self, final: Mapping[str, Any]) -> dict[str, str]:
        """Where the preset has those options of the method from that results depend on."""
        method = str(final["method"])
        announced = [f.name for f in fields(settings_of(method)) if f.metadata.get("announced")]
        known = origins(self.preset, str(final["budget"]))
        names = [f"{method}.{name}" for name in announced]
        return {name: reason(known[name]) for name in names if name in known}


def choose(*, images: int, side: int, budget: str, own_network: bool = False) -> Choices:
    """Backbone, image size and schedule for `images` training images of `side` pixels.

    A network that the user brings takes images as they are; only the schedule is chosen for it.
    """
    small = own_network or side <= SMALL_SIDE
    name = "own-data" if small else "own-photos"
    if budget not in BUDGETS:
        raise ConfigError(f"Unknown budget '{budget}'.", hint=did_you_mean(budget, BUDGETS))
    base = preset(name, budget)
    batch = _batch(images)
    period = base["evaluate_every"]  # the k of these presets; some methods have another period
    epochs = {
        "train": period * max(3, round(base["train"]["epochs"] / period * _factor(images))),
        "pretrain": max(1, round(base["pretrain"]["epochs"] * _factor(images))),
    }
    options: dict[str, Any] = {
        phase: {"epochs": epochs[phase], "batch_size": min(base[phase]["batch_size"], batch)}
        for phase in ("pretrain", "train")
    }
    schedule = f"{images:,} training images and the budget '{budget}'"
    reasons = {"pretrain.epochs": schedule, "train.epochs": schedule}
    known = origins(name, budget)
    few = f"at least {BATCHES} batches in {images:,} images"
    for phase in ("pretrain", "train"):
        limited = batch < base[phase]["batch_size"]
        reasons[f"{phase}.batch_size"] = few if limited else reason(known[f"{phase}.batch_size"])
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


def _batch(images: int) -> int:
    """The largest power of two of which there are enough."""
    return max(2, 1 << (max(2, images // BATCHES).bit_length() - 1))


def _factor(images: int) -> float:
    """Few images are seen more often, many less, within limits."""
    return min(3.0, max(1 / 3, USUAL_IMAGES / images))
