"""Files become a `Domain`: one uint8 tensor of images, their labels and class names.

May import: `errors`, `files`, `rng`, `config`, `_vision`. Knows nothing of models or training.
"""

VALIDATION = "validation"  # how records call the source's own validation images
