"""Analyses of data sets and runs, for `peerdg analyze`."""
