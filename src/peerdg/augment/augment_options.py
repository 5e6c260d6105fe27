"""Define augmentation options. Import classes lazily so that parsing does not import torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from peerdg.errors import ConfigError
from peerdg.options import option, validate

if TYPE_CHECKING:
    from peerdg.augment.protocol import Augment


def _of(kind: str, default: Any, help: str, **more: Any) -> Any:
    """Declare an option for one augmentation kind, or for several with `{kind: default}`."""
    defaults = default if isinstance(default, dict) else {kind: default}
    suffix = "" if default is None else f"; default {' or '.join(map(str, defaults.values()))}"
    declared = option(None, f"{kind}: {help}{suffix}", **more)
    return field(default=None, metadata={**declared.metadata, "defaults": defaults})


@dataclass(frozen=True, kw_only=True)
class AugmentSettings:
    """Settings of the augmentation G, shared by all methods that use one.

    Each option applies to one or more kinds. If it applies to the chosen kind, its default is that
    kind's. Otherwise it is None, and setting it is an error.
    """

    kind: Literal[
        "randaugment", "randconv", "pro-randconv", "augmix", "l2d-generator", "pden-generator"
    ] = option("randaugment", "augmentation to use; default: the method's own")
    operations: Literal["torchvision", "sdg"] | None = _of(
        "randaugment", "torchvision", "torchvision's 14 operations, or 16 from sDG code"
    )
    policy: Literal["default", "mild", "wide", "fixed"] | None = _of(
        "randaugment", "default", "ranges for redrawing num_ops and magnitude"
    )
    num_ops: int | None = _of(
        "randaugment", None, "fixed policy: operations per image; default 2", at_least=0
    )
    magnitude: int | None = _of(
        "randaugment", None, "fixed policy: magnitude; default 9", at_least=0, at_most=30
    )
    absolute_pixels: bool | None = _of(
        "randaugment", False, "sdg: use the lengths published for 224 px, unscaled"
    )
    variant: Literal["img", "mix"] | None = _of(
        "randconv", "img", "leave some batches unchanged (img) or mix input and output (mix)"
    )
    kernels: tuple[int, ...] | None = _of(
        "randconv", (1, 3, 5, 7), "kernel sizes to draw from", at_least=1
    )
    identity: float | None = _of(
        "randconv", None, "img: fraction of unchanged batches; default 0.5", at_least=0, at_most=1
    )
    repetitions: int | None = _of(
        "pro-randconv", 10, "maximum number of block repetitions", at_least=1
    )
    offsets: float | None = _of(
        "pro-randconv", 0.5, "maximum standard deviation of the offsets, in pixels", at_least=0
    )
    affine: float | None = _of(
        "pro-randconv", 0.5, "standard deviation of the random scales and shifts", at_least=0
    )
    severity: float | None = _of(
        "augmix", 3.0, "maximum operation strength, out of 10", above=0.1, at_most=10
    )
    chains: int | None = _of("augmix", 3, "number of chains to mix", at_least=1)
    depth: int | None = _of(
        "augmix", None, "operations per chain; default: random from 1 to 3", at_least=1
    )
    generator_kernels: tuple[int, ...] | None = _of(
        "l2d-generator", (5, 9, 13, 17), "kernel sizes of the spatial branches", at_least=1
    )
    generator_shift: float | None = _of(
        "l2d-generator", 0.1, "standard deviation of the random shifts", at_least=0
    )
    generator_mix: float | None = _of(
        "generators",
        {"l2d-generator": 0.6, "pden-generator": 1.0},
        "weight of the generated image",
        at_least=0,
        at_most=1,
    )
    generator_draws: Literal["period", "batch"] | None = _of(
        "l2d-generator", "period", "redraw the convolutions once per period or batch"
    )
    generator_width: int | None = _of(
        "pden-generator", 16, "channels in the first layer", at_least=1, at_most=1024
    )

    def __post_init__(self) -> None:
        validate(self)
        for f in fields(self)[1:]:
            kinds = f.metadata["defaults"]
            if getattr(self, f.name) is None:
                object.__setattr__(self, f.name, kinds.get(self.kind))
            elif self.kind not in kinds:
                kind = next(iter(kinds))
                raise _misplaced(f.name, "kind", kind, self.kind)
        for name in ("num_ops", "magnitude"):
            if self.policy != "fixed" and getattr(self, name) is not None:
                raise _misplaced(name, "policy", "fixed", self.policy)
        if self.variant == "mix" and self.identity is not None:
            raise _misplaced("identity", "variant", "img", "mix")
        for name in ("kernels", "generator_kernels"):
            if getattr(self, name) == ():
                raise ConfigError(f"augment.{name} is empty.", hint="Pass at least one size.")
        if even := [size for size in self.kernels or () if size % 2 == 0]:
            raise ConfigError(
                f"augment.kernels must be odd, got {even[0]}. Even kernels would shift the image.",
                hint="Use odd sizes, e.g. --augment.kernels 1,3,5,7.",
            )

    def check_images(self, side: int) -> None:
        """Raise if a generator kernel is too large for images of `side` x `side` pixels."""
        if self.generator_kernels and max(self.generator_kernels) >= side:
            raise ConfigError(
                f"augment.generator_kernels are too large for images of {side} x {side} pixels.",
                hint="Use smaller kernels, e.g. --augment.generator-kernels 3,5 for 32 x 32.",
            )


def _misplaced(name: str, option: str, needed: str, chosen: str | None) -> ConfigError:
    return ConfigError(
        f"augment.{name} only works with {option} '{needed}', but {option} is '{chosen}'.",
        hint=f"Remove it or set --augment.{option} {needed}.",
    )


_OPTIONS = fields(AugmentSettings)[1:]
DEFAULTS: dict[str, dict[str, Any]] = {
    kind: {f.name: f.metadata["defaults"][kind] for f in _OPTIONS if kind in f.metadata["defaults"]}
    for kind in get_args(AugmentSettings.__annotations__["kind"])
}  # kind -> option -> default value


def options_of_kind(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of `options` (e.g. a preset) that apply to this kind."""
    known = {"kind", *DEFAULTS.get(kind, {})}
    return {name: value for name, value in options.items() if name in known}


def make_augment(settings: AugmentSettings, *, seed: int, size: int) -> "Augment":
    """Build the configured augmentation.

    Args:
        settings: Kind of augmentation and its options.
        seed: Run seed, used by `redraw`.
        size: Image side in pixels. Generators need a fixed size.
    """
    from peerdg.augment.augmix import AugMix
    from peerdg.augment.generators import NoiseGenerator, StyleGenerator
    from peerdg.augment.policy import Policy
    from peerdg.augment.randconv import ProRandConv, RandConv

    settings.check_images(size)
    options: dict[str, Any] = {
        name.removeprefix("generator_"): getattr(settings, name) for name in DEFAULTS[settings.kind]
    }
    match settings.kind:
        case "randaugment":
            return Policy.named(options.pop("policy"), **options, seed=seed)
        case "randconv":
            return RandConv(**options)
        case "pro-randconv":
            return ProRandConv(**options)
        case "augmix":
            return AugMix(**options)
        case "l2d-generator":
            return StyleGenerator(size, **options, seed=seed)
        case "pden-generator":
            return NoiseGenerator(**options, seed=seed)
