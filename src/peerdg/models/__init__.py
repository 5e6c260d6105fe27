"""Networks: the classifier every method trains, its backbones, the projection head, averaging.

Knows nothing of data sets or training.
"""
