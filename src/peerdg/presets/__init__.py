"""One TOML file per benchmark. A comment on each value names its origin, e.g. the paper."""
