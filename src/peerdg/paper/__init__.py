"""The tables and figures of the PEER paper: what they need, published values, and our results."""
