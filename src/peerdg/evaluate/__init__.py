"""How well a model does, how much that changed during training.

May import: `train` and everything it may import. Results are plain records.
"""
