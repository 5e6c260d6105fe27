"""Training methods, one per file. Each defines its loss and the network to deploy.

Shared code: `base` (the interface), `views`, `clean`, `alignment`, `ascent`, `pool`, `recipes`.
"""
