"""Define classifiers, backbones, added layers and generators, independently of data."""
