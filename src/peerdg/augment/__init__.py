"""Augmentation on the device of the images: uint8 batch in, uint8 or float batch out.

- `geometry`, `operations`: the operations, each image of a batch with its own strength.
- `randaugment`: RandAugment on a whole batch, and its two tables of operations.
- `policy`: a RandAugment whose `(num_ops, magnitude)` is drawn again every few epochs.
- `randconv`, `augmix`, `generators`: other augmentations; `protocol` is what all of them offer.
- `semantic`: differentiable operations on float images, whose parameters a method learns.
- `view`: crops and resizes to the size of the network.
"""
