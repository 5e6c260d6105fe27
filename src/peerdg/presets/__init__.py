"""One TOML file per benchmark; each value is annotated with its origin: paper, code or assumed."""
