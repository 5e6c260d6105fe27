"""One method, one file: what to minimise, what to do between epochs, what to deploy.

Shared: `base` (the interface), `views`, `clean`, `alignment`, `pool`, `registry`, `recipes`.
"""
