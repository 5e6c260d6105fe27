"""Compare several methods with several seeds on the same data (`peerdg bench`)."""
