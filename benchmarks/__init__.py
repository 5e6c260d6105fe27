"""Speed, measured as ratios in one run; `make bench` runs everything here."""

from peerdg.run.hardware import keep_memory

keep_memory()  # as the command does
