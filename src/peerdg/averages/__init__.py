"""Weight averages of a network during training.

An average is evaluated next to its network, deployed instead of it, or serves as PEER's regulator.
"""
