"""Public names of `peerdg`, imported by `peerdg/__init__.py` on first use."""

from peerdg._vision import torchvision as torchvision  # also works with a CPU-only torch
from peerdg.api import bench as bench
from peerdg.api import combine as combine
from peerdg.api import fit as fit
from peerdg.augment.policy import Policy as Policy
from peerdg.augment.randaugment import RandAugment as RandAugment
from peerdg.averages.moving import EMA as EMA
from peerdg.averages.moving import SMA as SMA
from peerdg.averages.snapshots import Snapshots as Snapshots
from peerdg.data.domain import Domain as Domain
from peerdg.data.objects import as_domain as as_domain
from peerdg.data.splits import Splits as Splits
from peerdg.errors import PeerdgError as PeerdgError
from peerdg.methods.base import Batch as Batch
from peerdg.methods.erm import ERM as ERM
from peerdg.methods.peer import PEER as PEER
from peerdg.methods.peer import Settings as PeerSettings  # noqa: F401
from peerdg.methods.randaugment import AugmentedERM as AugmentedERM
from peerdg.model import load_model as load_model
from peerdg.models.backbones import build_classifier as build_classifier
from peerdg.models.classifier import Classifier as Classifier
