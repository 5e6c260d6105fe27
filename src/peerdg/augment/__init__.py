"""Batch augmentations that run on the images' device: uint8 in, uint8 or float out.

- `protocol`: the interface that all augmentations implement.
- `geometry`, `operations`: batched image operations with one strength per image.
- `randaugment`: RandAugment for whole batches, with two sets of operations.
- `policy`: RandAugment with a `(num_ops, magnitude)` that is redrawn every few epochs.
- `randconv`, `augmix`, `generators`: alternatives to RandAugment.
- `semantic`: differentiable operations on float images with learnable parameters.
- `view`: cropping and resizing to the network's input size.
"""
