"""One run: options, folder, checkpoints, records and the model. Starts at `run.start_run`."""
