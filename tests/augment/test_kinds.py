"""Options of the kinds of augmentation, and the resulting augmentations."""

from typing import Any

import pytest
import torch

from peerdg.augment.augment_options import DEFAULTS, AugmentSettings, make_augment
from peerdg.augment.augmix import AugMix
from peerdg.augment.generators import NoiseGenerator, StyleGenerator
from peerdg.augment.policy import Policy
from peerdg.augment.protocol import Augment
from peerdg.augment.randconv import ProRandConv, RandConv
from peerdg.errors import ConfigError, DataError
from peerdg.run.config import resolve
from peerdg.run.presets import BUDGETS

IMAGES = torch.randint(
    0, 256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
# A non-default option of each kind, and the attribute it sets.
MADE: dict[str, tuple[type[Any], dict[str, Any], dict[str, Any]]] = {
    "randaugment": (Policy, {"policy": "mild"}, {"num_ops": (1, 2), "magnitude": (1, 10)}),
    "randconv": (RandConv, {"kernels": [3]}, {"kernels": (3,), "identity": 0.5}),
    "pro-randconv": (ProRandConv, {"offsets": 0.2}, {"offsets": 0.2, "repetitions": 10}),
    "augmix": (AugMix, {"severity": 5}, {"severity": 5, "chains": 3, "depth": None}),
    "l2d-generator": (
        StyleGenerator,
        {"generator_kernels": [3, 5], "generator_draws": "batch"},
        {"kernels": (3, 5), "draws": "batch", "mix": 0.6, "size": 32, "shift": 0.1},
    ),
    "pden-generator": (NoiseGenerator, {"generator_width": 4}, {"width": 4, "mix": 1.0}),
}
kinds = pytest.mark.parametrize("kind", DEFAULTS)


def made(kind: str, *, seed: int = 0) -> Augment:
    return make_augment(AugmentSettings(kind=kind, **MADE[kind][1]), seed=seed, size=32)


@kinds
def test_options_reach_the_augmentation(kind: str):
    augment = made(kind)
    expected, _, attributes = MADE[kind]
    assert type(augment) is expected
    assert {name: getattr(augment, name) for name in attributes} == attributes


@kinds
def test_views_follow_the_generator_and_a_period_is_repeatable(kind: str):
    first, second, before = made(kind, seed=3), made(kind, seed=3), IMAGES.clone()
    assert first.redraw(4) == second.redraw(4)
    views = [
        augment(IMAGES, torch.Generator().manual_seed(seed))
        for augment, seed in ((first, 1), (second, 1))
    ]
    assert torch.equal(*views)
    assert views[0].shape == IMAGES.shape
    assert views[0].dtype in (torch.uint8, torch.float32)
    assert torch.equal(IMAGES, before)


@kinds
def test_invalid_batches_are_refused(kind: str):
    for images in (IMAGES.double(), IMAGES[0], IMAGES[:, :1]):
        with pytest.raises(DataError, match="uint8 batch"):
            made(kind)(images)


@kinds
def test_batches_augmented_together_equal_each_alone(kind: str):
    augment = made(kind)

    def generators() -> list[torch.Generator]:
        return [torch.Generator().manual_seed(seed) for seed in (1, 2)]

    together = augment.augment_batches([IMAGES, IMAGES[:2]], generators())
    alone = [
        augment(images, g) for images, g in zip([IMAGES, IMAGES[:2]], generators(), strict=True)
    ]
    assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))


@kinds
def test_an_option_of_another_kind_is_refused(kind: str):
    for other, options in DEFAULTS.items():
        for name in options.keys() - DEFAULTS[kind].keys():
            value = MADE[other][1].get(name, options[name])
            if value is None:
                continue
            with pytest.raises(ConfigError, match=f"augment.{name} only works with") as caught:
                AugmentSettings(kind=kind, **{name: value})
            assert "--augment.kind" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "randconv", "kernels": (3, 4)}, "must be odd, got 4"),
        ({"kind": "randconv", "kernels": ()}, "augment.kernels is empty"),
        ({"kind": "randconv", "variant": "mix", "identity": 0.5}, "only works with variant"),
        ({"kind": "augmix", "severity": 11.0}, "at most 10"),
        ({"kind": "mixup"}, "must be one of"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        AugmentSettings(**options)


def test_a_generators_kernels_must_be_smaller_than_the_images():
    settings = AugmentSettings(kind="l2d-generator")
    settings.check_images(18)
    with pytest.raises(ConfigError, match="too large for images of 17 x 17"):
        make_augment(settings, seed=0, size=17)


@pytest.mark.parametrize("budget", BUDGETS)
@kinds
def test_a_preset_gives_each_kind_its_own_options_only(kind: str, budget: str):
    for data in ("digits-mini", "digits", "pacs", "office-home", "vlcs", "terra"):
        wanted = {"benchmark": data, "root": "/data", "budget": budget, "augment": {"kind": kind}}
        settings = resolve({**wanted, "method": "peer"}).augment
        assert settings.kind == kind
        small = data.startswith("digits")
        if kind == "pro-randconv":
            assert settings.offsets == (0.2 if small else 0.5)
        if kind == "l2d-generator":
            assert settings.generator_kernels == ((3, 5) if small else (5, 9, 13, 17))
            settings.check_images(32 if small else 224)


def test_an_option_of_randaugment_set_by_the_user_is_refused():
    with pytest.raises(ConfigError, match=r"augment\.operations only works .*'randaugment'"):
        resolve({"augment": {"kind": "augmix", "operations": "sdg"}})
    assert resolve({"augment": {"kind": "augmix"}}).augment.operations is None
