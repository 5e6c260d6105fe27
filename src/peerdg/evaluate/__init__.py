"""How well a model does, how much that changed during training, what one would have chosen.

May import: `train` and everything it may import. Results are plain records.
"""
