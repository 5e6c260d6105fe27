"""`python -m peerdg` is the command `peerdg`."""

from peerdg.cli.main import main

main()
