"""Networks: the classifier every method trains, its backbones, the projection head, averaging.

May import: `errors`, `files`, `rng`, `config`, `_vision`. Knows nothing of data sets or training.
"""
