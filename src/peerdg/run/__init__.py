"""One run: its options, its folder, its checkpoints and records, and what puts it together.

`runner.execute` is the way in.
"""
