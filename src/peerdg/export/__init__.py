"""A trained model for the world outside: ONNX, torch.export, plain weights, and its card.

May import: everything below `report` on the road, and `report`. Knows nothing of running a
training.
"""
