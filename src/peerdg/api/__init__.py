"""What a Python user calls: `fit`, `bench`, `load_model` and `combine`, and what they give back."""

from peerdg.api.model import Model as Model
from peerdg.api.model import Prediction as Prediction
from peerdg.api.model import combine as combine
from peerdg.api.model import load_model as load_model
from peerdg.api.train import Run as Run
from peerdg.api.train import bench as bench
from peerdg.api.train import fit as fit
