"""Run the command line with `python -m peerdg`."""

from peerdg.cli.main import main

main()
