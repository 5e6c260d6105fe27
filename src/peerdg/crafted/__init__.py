"""Crafted validation: distorted copies of source images, to judge robustness without a target.

Efthymiadis et al., "Crafting Distribution Shifts for Validation and Training in Single Source
Domain Generalization", WACV 2025: ten families of distortions, each applied to the source's own
validation images.

- `families`: their names, and which of them a training has already seen.
- `sets`: the ten domains, made once and kept.
- `values`, `filters`, `drawing`, `geometric`, `weather`: the operations, a table for each family.
- `operation`: an operation with its ranges, and how an image draws one of its family.
- `pixels`: shared pieces: filters, warps, random fields.
"""
