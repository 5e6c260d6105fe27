"""Make the tables and figures of the PEER paper, with published values and our results."""
