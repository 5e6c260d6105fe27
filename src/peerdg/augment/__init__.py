"""Augmentation on the device of the images: uint8 batch in, uint8 or float batch out.

- `protocol`: the interface of all augmentations.
- `geometry`, `operations`: batched image operations with one strength per image.
- `randaugment`: RandAugment on a whole batch, with two tables of operations.
- `policy`: RandAugment with a `(num_ops, magnitude)` that is redrawn every few epochs.
- `randconv`, `augmix`, `generators`: other augmentations.
- `semantic`: differentiable operations on float images with learnable parameters.
- `view`: crops and resizes to the input size of the network.
"""
