"""Crafted validation: how robust a model is, judged on distorted copies of source images.

Efthymiadis et al., "Crafting Distribution Shifts for Validation and Training in Single Source
Domain Generalization", WACV 2025: ten families of distortions, each applied to the source's own
validation images. No target is needed.

- `overlap`: which families there are, and which of them a training has already seen.
- `sets`: the ten domains, made once and kept.
- `operation`: an operation with its ranges, and how an image draws one of its family.
- `pixels`: what the families share: filters, warps, random fields.
- one file per family with its table, `FAMILY`.
"""
