"""The command `peerdg`: one file per command; parse, call one function, print.

Modules here import torch only inside functions, so `--help` is instant.
"""
