"""Crafted validation: distorted copies of source images, to measure robustness without targets.

Efthymiadis et al., "Crafting Distribution Shifts for Validation and Training in Single Source
Domain Generalization", WACV 2025: ten families of distortions, each applied to the source's own
validation images. A family that is also used in training says nothing about unseen domains, so it
is excluded from model selection.

- `sets`: the ten domains, created once and cached.
- `values`, `filters`, `drawing`, `geometric`: the operations, with one table per family.
- `operation`: the `Operation` class, and shared filters, warps and random fields.
"""

FAMILIES = tuple(
    "arithmetic artistic blur color contrast convolutional edges geometric segmentation weather"
    .split()
)  # fmt: skip
# Families that overlap with RandAugment: affine maps, brightness, color, contrast, solarize.
# `convolutional` stays, although one of its five operations is a strong form of Sharpness.
RANDAUGMENT = frozenset({"arithmetic", "color", "contrast", "geometric"})
# The six families used for model selection by default, the same for every method.
DISJOINT = tuple(name for name in FAMILIES if name not in RANDAUGMENT)
