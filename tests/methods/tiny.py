"""Options of each method for a run of a few seconds."""

from typing import Any

TINY: dict[str, dict[str, Any]] = {
    "ada": {"k": 2, "steps": 3, "rate": 20.0},
    "advst": {"k": 2, "steps": 3, "batch_size": 10, "head_dim": 8, "eta_min": 0.1},
    "barlow-twins": {"k": 2},
    "l2d": {"kernels": [3, 5], "dim": 8},
    "m-ada": {"k": 2, "steps": 3, "rate": 20.0, "wae_epochs": 2, "wae_batch": 8},
    "me-ada": {"k": 2, "steps": 3, "rate": 20.0},
    "metacnn": {"k": 2, "atoms": 8, "addressed": 2},
    "miro": {"k": 2, "views": "both"},
    "pden": {"domains": 3, "k": 1, "width": 4, "dim": 8},
    "peer": {"k": 2},
    "randaugment": {"k": 2},
    "simde": {"width": 4},
    "teacher": {"k": 2},
}
