"""Accuracy of models, its fluctuation during training, and model selection."""
