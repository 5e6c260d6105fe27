"""Crafted validation: distorted copies of source images, to evaluate robustness without targets.

Efthymiadis et al., "Crafting Distribution Shifts for Validation and Training in Single Source
Domain Generalization", WACV 2025: ten families of distortions, each applied to the source's own
validation images. A family used in training is not evidence about unseen domains, so it is
excluded from model selection.

- `sets`: the ten domains, made once and cached.
- `values`, `filters`, `drawing`, `geometric`: the operations, a table for each family.
- `operation`: an operation with its ranges, and shared filters, warps and fields.
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

# Families that overlap with RandAugment: affine maps, brightness, color, contrast, solarize. Its
# Sharpness is a mild form of one of five operations of `convolutional`, which is not excluded.
RANDAUGMENT = frozenset({"arithmetic", "color", "contrast", "geometric"})
# The six families used for model selection by default, the same for every method.
DISJOINT = tuple(name for name in FAMILIES if name not in RANDAUGMENT)
