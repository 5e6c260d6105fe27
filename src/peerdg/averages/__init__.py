"""Weight averages that follow a network through training: one file, one average.

An average is watched beside the network it follows, deployed in its place, or serves as PEER's
regulator.
"""
