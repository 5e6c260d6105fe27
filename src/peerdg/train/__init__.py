"""Implement the training loop: source, batches, steps, optimizers, state and finite checks."""
