"""Augmentation on the device of the images: uint8 batch in, uint8 or float batch out.

- `geometry`, `curves`, `blends`: the operations, each image of a batch with its own strength.
- `operations`: all of them by name, in one place.
- `randaugment`: RandAugment on a whole batch, and the two tables of operations it draws from.
- `semantic`: differentiable operations on float images, whose parameters a method learns.
- `policy`: a RandAugment whose `(num_ops, magnitude)` is drawn again every few epochs.
- `randconv`, `prorandconv`, `augmix`, `generators`: what may stand in its place.
- `protocol`: what all of these offer; `factory` makes the one that `settings` ask for.
- `base`: what brings images to the size of the network, whatever the augmentation.
"""

REVISION = 2
"""Of what augmentations mean: raised when a change would alter the images of a run.

1: the first version. 2: SolarizeAdd of the `sdg` set adds to every pixel and inverts those at or
above 128, where it added to the pixels below the threshold only.
"""

_CHANGED = {2: ("sdg",)}  # by revision, the sets of operations and kinds that it changed


def is_same_augmentation(definition: str, revision: int) -> bool:
    """Whether an augmentation still means what it meant at `revision`.

    Nothing is known about revisions that are yet to come: they count as different.

    Args:
        definition: A set of RandAugment's operations, or another kind of augmentation.
        revision: `REVISION` of the version that used it.
    """
    changed = [name for n, names in _CHANGED.items() if n > revision for name in names]
    return revision <= REVISION and definition not in changed
