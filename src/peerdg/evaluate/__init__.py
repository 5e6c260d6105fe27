"""How well a model does, how much that changed during training, what one would have chosen.

Results are plain records.
"""
