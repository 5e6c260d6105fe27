"""Augmentation on the device of the images: uint8 batch in, uint8 batch out.

- `geometry`, `curves`, `blends`: the operations, each image of a batch with its own strength.
- `operations`: all of them by name, in one place.
- `randaugment`: RandAugment on a whole batch, and the two tables of operations it draws from.
- `policy`: a RandAugment whose `(num_ops, magnitude)` is drawn again every few epochs.

Code here may import `errors`, `rng`, `config` and `_vision` of peerdg, and torch; nothing else.
Nothing is imported with the package itself: import the module that you need.
"""
