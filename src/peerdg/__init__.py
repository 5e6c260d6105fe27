"""Single-source domain generalization: train on one domain, generalize to unseen domains."""

import importlib
from typing import TYPE_CHECKING, Any

from peerdg.version import __version__

if TYPE_CHECKING:
    from peerdg._vision import torchvision as torchvision
    from peerdg.api import bench as bench
    from peerdg.api import combine as combine
    from peerdg.api import fit as fit
    from peerdg.api import load_model as load_model
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
    from peerdg.models.backbones import build_classifier as build_classifier
    from peerdg.models.classifier import Classifier as Classifier

# Importing peerdg must not import torch: the command line answers --help without it.
_HOME = {
    "EMA": "peerdg.averages.moving:EMA",
    "ERM": "peerdg.methods.erm:ERM",
    "PEER": "peerdg.methods.peer:PEER",
    "Batch": "peerdg.methods.base:Batch",
    "Classifier": "peerdg.models.classifier:Classifier",
    "Domain": "peerdg.data.domain:Domain",
    "PeerSettings": "peerdg.methods.peer:Settings",
    "PeerdgError": "peerdg.errors:PeerdgError",
    "Policy": "peerdg.augment.policy:Policy",
    "AugmentedERM": "peerdg.methods.randaugment:AugmentedERM",
    "RandAugment": "peerdg.augment.randaugment:RandAugment",
    "SMA": "peerdg.averages.moving:SMA",
    "Snapshots": "peerdg.averages.snapshots:Snapshots",
    "Splits": "peerdg.data.splits:Splits",
    "as_domain": "peerdg.data.objects:as_domain",
    "bench": "peerdg.api:bench",
    "build_classifier": "peerdg.models.backbones:build_classifier",
    "combine": "peerdg.api:combine",
    "fit": "peerdg.api:fit",
    "load_model": "peerdg.api:load_model",
    "torchvision": "peerdg._vision:torchvision",  # also beside a CPU-only torch
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'peerdg' has no attribute '{name}'")
    module, _, attribute = _HOME[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
