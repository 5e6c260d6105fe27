"""The command `peerdg`, one file per subcommand. Torch is imported late for a fast `--help`."""
