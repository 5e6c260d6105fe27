"""One run: its options, its folder, its checkpoints and records, and what puts it together.

May import: `tables`, `evaluate`, `crafted`, `train` and below. `runner.execute` is the way in.
"""
