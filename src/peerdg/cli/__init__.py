"""The command `peerdg`: one file per command; parse, call one function, print.

May import everything. Modules here import torch only inside functions, so `--help` is instant.
"""
