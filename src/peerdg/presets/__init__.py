"""One TOML file per benchmark; every value says whether it is from the paper, code or assumed."""
