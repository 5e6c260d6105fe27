"""Load images as a `Domain`: one uint8 tensor, labels and class names.

`own_data` reads a user's folders and lists, `objects` converts data in memory, and `published` and
`digits` load the benchmarks. This module defines the names of validation images in records.
"""

VALIDATION = "validation"  # the source's own validation images
CRAFTED = "crafted:"  # prefix for distorted copies of them, e.g. "crafted:blur"


def is_target(domain: str) -> bool:
    """Return whether a recorded domain name refers to a target rather than validation images."""
    return domain != VALIDATION and not domain.startswith(CRAFTED)
