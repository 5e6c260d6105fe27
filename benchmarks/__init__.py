"""Speed, measured as ratios in one run; `make bench` runs everything here."""

from peerdg.train.hardware import use_huge_pages

use_huge_pages()  # as the command does, before torch has made a tensor
