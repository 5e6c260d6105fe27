"""Make the configured augmentation: the one place that knows all kinds."""

from typing import Any

from peerdg.augment.augmix import AugMix
from peerdg.augment.generators import NoiseGenerator, StyleGenerator
from peerdg.augment.policy import Policy
from peerdg.augment.protocol import Augment
from peerdg.augment.randconv import ProRandConv, RandConv
from peerdg.augment.settings import DEFAULTS, AugmentSettings


def make_augment(settings: AugmentSettings, *, seed: int, size: int) -> Augment:
    """Make the configured augmentation.

    Args:
        settings: Kind and options.
        seed: The seed of the run, from which `redraw` draws.
        size: Side of the images; generators are made for one size.

    Raises:
        ConfigError: If an option does not fit.
    """
    settings.check_images(size)
    options: dict[str, Any] = {name: getattr(settings, name) for name in DEFAULTS[settings.kind]}
    match settings.kind:
        case "randaugment":
            return _policy(**options, seed=seed)
        case "randconv":
            return RandConv(**options)
        case "pro-randconv":
            return ProRandConv(**options)
        case "augmix":
            return AugMix(**options)
        case "l2d-generator":
            return StyleGenerator(
                size,
                kernels=options["generator_kernels"],
                shift_std=options["generator_shift"],
                mix=options["generator_mix"],
                draws=options["generator_draws"],
                seed=seed,
            )
        case "pden-generator":
            return NoiseGenerator(
                width=options["generator_width"], mix=options["generator_mix"], seed=seed
            )


def _policy(*, policy: Any, num_ops: int | None, magnitude: int | None, **options: Any) -> Policy:
    return Policy.named(
        policy,
        num_ops=2 if num_ops is None else num_ops,
        magnitude=9 if magnitude is None else magnitude,
        **options,
    )
