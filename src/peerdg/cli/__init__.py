"""The `peerdg` command, one file per subcommand. Torch is imported late to keep `--help` fast."""
