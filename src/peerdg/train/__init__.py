"""The training loop and what makes it trustworthy: run folder, checkpoints, signals, progress.

May import: `methods`, `losses`, `models`, `augment`, `data`, `config`, `rng`, `files`, `errors`.
Does not import `evaluate`: the loop receives a callable.
"""
