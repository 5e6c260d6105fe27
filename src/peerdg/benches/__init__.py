"""Several methods with several seeds on the same data: plan, training, table (`peerdg bench`)."""
