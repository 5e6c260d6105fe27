"""One run: its options, its folder, its checkpoints and records, and what puts it together.

`run.start_run` is the way in.
"""
