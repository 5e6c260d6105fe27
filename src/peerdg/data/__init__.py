"""Files become a `Domain`: one uint8 tensor of images, their labels and class names.

`own_data` reads a user's folders and lists, `objects` data in Python, `published` and `digits` the
benchmarks. This module has the names that records use.
"""

VALIDATION = "validation"  # how records call the source's own validation images
CRAFTED = "crafted:"  # begins the names of distorted copies of them, e.g. "crafted:blur"


def is_target(domain: str) -> bool:
    """Tell whether records mean a target by this name, and no kind of validation images."""
    return domain != VALIDATION and not domain.startswith(CRAFTED)
