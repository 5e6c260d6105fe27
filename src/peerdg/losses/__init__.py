"""One loss, one function, one file, with the equation it implements.

May import: `errors`. A loss takes tensors and returns a scalar; it knows nothing of models.
"""
