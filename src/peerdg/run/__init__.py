"""A single run: options, folder, checkpoints, records and model. Entry point: `run.start_run`."""
