"""Training methods, one per file: the loss, the work between epochs, the deployed network.

Shared: `base` (the interface), `views`, `clean`, `alignment`, `pool`, `registry`, `recipes`.
"""
