"""The training loop: source, order, batches, step, optimizers, state, the guard against NaN."""
