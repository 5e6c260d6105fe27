"""Averages of a network's weights during training.

An average can be evaluated alongside its network, deployed instead, or used as PEER's regulator.
"""
