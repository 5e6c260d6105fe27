"""Names of the families of distortions of crafted validation, and which of them have a vote."""

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

RANDAUGMENT = frozenset({"arithmetic", "color", "contrast", "geometric"})
"""What RandAugment trains on: affine maps, brightness, colour and contrast, solarize, posterize.

Its Sharpness is a mild relative of one of five operations of `convolutional`; that one stays.
"""

DISJOINT = tuple(name for name in FAMILIES if name not in RANDAUGMENT)
"""The six families that decide by default, for every method alike."""
