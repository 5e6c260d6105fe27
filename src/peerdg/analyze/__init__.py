"""Compare data sets, networks and snapshots. Each analysis has its own module."""
