"""Augmentation on the device of the images: uint8 batch in, uint8 batch out.

- `geometry`, `curves`, `blends`: the operations, each image of a batch with its own strength.
- `operations`: all of them by name, in one place.
- `randaugment`: RandAugment on a whole batch, and the two tables of operations it draws from.
- `semantic`: differentiable operations on float images, whose parameters a method learns.
- `policy`: a RandAugment whose `(num_ops, magnitude)` is drawn again every few epochs.

"""

REVISION = 2
"""Of what the operations mean: raised when a change would alter the images of a run.

1: the first version. 2: SolarizeAdd of the `sdg` set adds to every pixel and inverts those at or
above 128, where it added to the pixels below the threshold only.
"""

_CHANGED_SETS = {2: ("sdg",)}  # by revision, the sets of operations that it changed


def is_same_augmentation(operations: str, revision: int) -> bool:
    """Whether a set of operations still means what it meant at `revision`.

    Nothing is known about revisions that are yet to come: they count as different.
    """
    changed = [name for n, sets in _CHANGED_SETS.items() if n > revision for name in sets]
    return revision <= REVISION and operations not in changed
