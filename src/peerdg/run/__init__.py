"""Train a single run. The entry point is `run.start_run`."""
