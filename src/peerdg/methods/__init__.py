"""One method, one file: what to minimise, what to do between epochs, what to deploy.

May import: `losses`, `models`, `augment`, `config`, `rng`, `errors`. A method knows nothing of
files, devices, loggers or progress bars, so it works in anybody's training loop.
"""
