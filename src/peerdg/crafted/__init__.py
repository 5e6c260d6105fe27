"""Crafted validation: distorted copies of source images, to judge robustness without a target.

Efthymiadis et al., "Crafting Distribution Shifts for Validation and Training in Single Source
Domain Generalization", WACV 2025: ten families of distortions, each applied to the source's own
validation images. A family that a training has seen is not evidence about unseen domains, so it is
excluded from model selection.

- `sets`: the ten domains, made once and cached.
- `values`, `filters`, `drawing`, `geometric`: the operations, a table for each family.
- `operation`: an operation with its ranges, and the filters, warps and fields they share.
"""

FAMILIES = (
    "arithmetic",
    "artistic",
    "blur",
    "color",
    "contrast",
    "convolutional",
    "edges",
    "geometric",
    "segmentation",
    "weather",
)

# Families that RandAugment trains on: affine maps, brightness, color, contrast, solarize. Its
# Sharpness is a mild relative of one of five operations of `convolutional`, which stays.
RANDAUGMENT = frozenset({"arithmetic", "color", "contrast", "geometric"})
# The six families that decide by default, for every method alike.
DISJOINT = tuple(name for name in FAMILIES if name not in RANDAUGMENT)
