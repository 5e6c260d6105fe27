"""The training loop: source, batches, steps, optimizers, state and non-finite checks."""
