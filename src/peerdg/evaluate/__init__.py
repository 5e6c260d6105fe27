"""Measure accuracy and its fluctuation during training, and select models."""
