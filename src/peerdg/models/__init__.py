"""Networks: classifier, backbones, added layers, generators. Independent of data and training."""
