"""A trained model for the world outside: ONNX, torch.export, plain weights, and its card.

Knows nothing of running a training.
"""
