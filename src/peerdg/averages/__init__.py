"""Average the weights of a network during training.

An average can be evaluated alongside its network, deployed instead, or used as PEER's regulator.
"""
