"""How well a model does, how much that changes during training, and what a rule selects."""
