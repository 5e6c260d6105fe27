"""Options of the augmentation, free of torch."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from peerdg.errors import ConfigError
from peerdg.options import option, validate

DEFAULTS: dict[str, dict[str, Any]] = {
    # The options of each kind; None stays unset.
    "randaugment": {
        "operations": "torchvision",
        "policy": "default",
        "num_ops": None,
        "magnitude": None,
        "absolute_pixels": False,
    },
    "randconv": {"variant": "img", "kernels": (1, 3, 5, 7), "identity": None},
    "pro-randconv": {"repetitions": 10, "offsets": 0.5, "affine": 0.5},
    "augmix": {"severity": 3.0, "chains": 3, "depth": None},
    "l2d-generator": {
        "generator_kernels": (5, 9, 13, 17),
        "generator_shift": 0.1,
        "generator_mix": 0.6,
        "generator_draws": "period",
    },
    "pden-generator": {"generator_width": 16, "generator_mix": 1.0},
}


@dataclass(frozen=True, kw_only=True)
class AugmentSettings:
    """The augmentation G, shared by all methods that augment.

    Options belong to one kind. Those of the chosen kind get its defaults; those of others are
    unset, and refused if they are given.
    """

    kind: Literal[
        "randaugment", "randconv", "pro-randconv", "augmix", "l2d-generator", "pden-generator"
    ] = option("randaugment", "the augmentation; default: the method's own")
    operations: Literal["torchvision", "sdg"] | None = option(
        None,
        "randaugment: torchvision's 14 operations (default), or the 16 with Invert of the sDG "
        "code bases",
    )
    policy: Literal["default", "mild", "wide", "fixed"] | None = option(
        None, "randaugment: range of the re-drawn number of operations and magnitude, or fixed"
    )
    num_ops: int | None = option(
        None, "randaugment: operations per image of the fixed policy; default 2", at_least=0
    )
    magnitude: int | None = option(
        None,
        "randaugment: magnitude of the fixed policy, 0..30; default 9",
        at_least=0,
        at_most=30,
    )
    absolute_pixels: bool | None = option(
        None, "randaugment, sdg: pixel ranges as published for 224 px, not scaled to the image"
    )
    variant: Literal["img", "mix"] | None = option(
        None, "randconv: some batches stay as they are (img, default), or all are mixed with theirs"
    )
    kernels: tuple[int, ...] | None = option(
        None, "randconv: sizes that the kernel is drawn from; default 1,3,5,7", at_least=1
    )
    identity: float | None = option(
        None,
        "randconv, img: probability that a batch stays as it is; default 0.5",
        at_least=0,
        at_most=1,
    )
    repetitions: int | None = option(
        None, "pro-randconv: the block is applied 1 to this many times; default 10", at_least=1
    )
    offsets: float | None = option(
        None,
        "pro-randconv: largest standard deviation of the offsets, in pixels; default 0.5",
        at_least=0,
    )
    affine: float | None = option(
        None, "pro-randconv: standard deviation of scales and shifts; default 0.5", at_least=0
    )
    severity: float | None = option(
        None, "augmix: strongest level of an operation, out of 10; default 3", above=0.1, at_most=10
    )
    chains: int | None = option(None, "augmix: chains that are mixed; default 3", at_least=1)
    depth: int | None = option(
        None, "augmix: operations in each chain; default: 1 to 3, drawn for each", at_least=1
    )
    generator_kernels: tuple[int, ...] | None = option(
        None, "l2d-generator: kernels of the spatial branches; default 5,9,13,17", at_least=1
    )
    generator_shift: float | None = option(
        None, "l2d-generator: standard deviation of the shifts; default 0.1", at_least=0
    )
    generator_mix: float | None = option(
        None,
        "generators: share of the generated image; default 0.6 of L2D's, 1 of PDEN's",
        at_least=0,
        at_most=1,
    )
    generator_draws: Literal["period", "batch"] | None = option(
        None, "l2d-generator: convolutions stay for a period (default), or are drawn per batch"
    )

    generator_width: int | None = option(
        None, "pden-generator: channels of its first layer; default 16", at_least=1, at_most=1024
    )

    def __post_init__(self) -> None:
        validate(self)
        self._refuse_other_kinds()
        for name, default in DEFAULTS[self.kind].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        if self.policy != "fixed" and not (self.num_ops is None and self.magnitude is None):
            raise ConfigError(
                f"augment.num_ops and augment.magnitude belong to the fixed policy, but the policy "
                f"is '{self.policy}'.",
                hint="Add --augment.policy fixed, or leave them out.",
            )
        if self.variant == "mix" and self.identity is not None:
            raise ConfigError(
                "augment.identity belongs to the variant 'img', but the variant is 'mix'.",
                hint="Leave it out, or choose --augment.variant img.",
            )
        if even := [size for size in self.kernels or () if size % 2 == 0]:
            raise ConfigError(
                f"augment.kernels has the even size {even[0]}; it would shift the image by half a "
                "pixel.",
                hint="Use odd sizes, e.g. --augment.kernels 1,3,5,7.",
            )
        for name in ("kernels", "generator_kernels"):
            if getattr(self, name) == ():
                raise ConfigError(f"augment.{name} is empty.", hint="Name at least one size.")

    def _refuse_other_kinds(self) -> None:
        own = DEFAULTS[self.kind]
        given = [f.name for f in fields(self) if getattr(self, f.name) is not None]
        for name in given:
            if name != "kind" and name not in own:
                kind = next(kind for kind, options in DEFAULTS.items() if name in options)
                raise ConfigError(
                    f"augment.{name} belongs to the augmentation '{kind}', but the augmentation is "
                    f"'{self.kind}'.",
                    hint=f"Leave it out, or choose --augment.kind {kind}.",
                )

    @property
    def definition(self) -> str:
        """The name by which revisions are counted: a set of operations, or a kind.

        See `peerdg.augment.is_same_augmentation`.
        """
        return self.operations or self.kind

    def check_images(self, side: int) -> None:
        """Refuse options that do not fit images of this side, before any work is done.

        Raises:
            ConfigError: If a branch of a generator would have no pixels left to normalise.
        """
        if self.generator_kernels and max(self.generator_kernels) >= side:
            raise ConfigError(
                f"A kernel of {max(self.generator_kernels)} pixels (--augment.generator-kernels) "
                f"is too large for images of {side} x {side}.",
                hint="Use smaller ones; --augment.generator-kernels 3,5 suits images of 32 pixels.",
            )


def options_of_kind(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `options`, e.g. of a preset, that have a meaning for this kind."""
    known = {"kind", *DEFAULTS.get(kind, {})}
    return {name: value for name, value in options.items() if name in known}
