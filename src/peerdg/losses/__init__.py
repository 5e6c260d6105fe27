"""Losses, each with the equation it implements.

A loss takes tensors and returns a scalar; it knows nothing of models.
"""
