"""Initial weights from a file: matching tensors are loaded, the report lists the rest.

A file may hold the whole network as torchvision, timm or the CaffeNet conversions store it, a part
of it (`features.*`), or a model that peerdg saved. The last layer of a foreign file belongs to
other classes and is never used.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from peerdg.errors import ConfigError, DamagedError, DataError
from peerdg.models.classifier import Classifier
from peerdg.models.download import imagenet_file
from peerdg.models.names import BACKBONES, TIMM
from peerdg.models.stored import load_weights
from peerdg.models.timm_models import described, hub_file

SMALLEST_PART = 0.1  # of the encoder's tensors; a file with less is a mistake
SHOWN = 4  # names in a sentence
# What torchvision called the layers of ViT's MLP when it published the weights.
_FORMER_NAMES = ((r"\.mlp\.linear_1\.", ".mlp.0."), (r"\.mlp\.linear_2\.", ".mlp.3."))
# Counts batches and decides nothing; older files do not have it.
_COUNTER = "num_batches_tracked"


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """Where the initial weights come from.

    Args:
        source: The file, or `"none"`.
        loaded: Number of the encoder's tensors that were loaded.
        total: Number of the encoder's tensors.
        fresh: Names of the encoder's tensors that keep their random initial values.
        unused: Names of the file's tensors that have no place in the network, without its last
            layer.
        head: Whether the head was loaded, too; otherwise it starts fresh.
    """

    source: str
    loaded: int
    total: int
    fresh: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    head: bool = False

    def __str__(self) -> str:
        if self.loaded == 0:
            return "All weights start fresh."
        head = "the head, too" if self.head else "the head starts fresh"
        text = f"{self.loaded} of {self.total} weights loaded from {self.source}; {head}."
        if self.fresh:
            text += f" Fresh: {_some(self.fresh)}."
        if self.unused:
            text += f" Not used from the file: {_some(self.unused)}."
        return text


def weights_file(backbone: str, weights: str) -> Path | None:
    """The file with the initial weights, fetched if need be; None for `"none"`.

    Raises:
        ConfigError: If the published weights cannot be had.
        DataError: If there is no such file.
    """
    if weights == "none":
        return None
    if weights == "imagenet":
        return hub_file(backbone) if backbone.startswith(TIMM) else imagenet_file(backbone)
    if not Path(weights).is_file():
        raise DataError(f"There is no weights file {weights}.", hint="Check --weights.")
    return Path(weights)


def initialise(model: Classifier, backbone: str, weights: str) -> LoadReport:
    """Give `model` its initial weights, in place.

    Args:
        model: A fresh classifier made by `build_classifier(backbone, ...)`.
        backbone: Its name.
        weights: `"none"`; `"imagenet"`, the published weights from the cache or the network; or
            a `.safetensors`, `.pth` or `.pt` file.

    Raises:
        ConfigError: If the weights cannot be had, are for another network, or hardly any fits.
        DataError: If there is no such file.
        DamagedError: If the file is damaged, or holds anything but tensors of finite numbers.
    """
    path = weights_file(backbone, weights)
    if path is None:
        return LoadReport(source="none", loaded=0, total=len(_encoder_names(model)))
    tensors = load_weights(path)
    _check_finite(tensors, path)
    if _is_own(tensors):
        places = _own_places(tensors, model)
    else:
        places = _foreign_places(tensors, _last_layer(model, backbone))
    return _load(model, backbone, path, tensors, places)


def _load(
    model: Classifier,
    backbone: str,
    path: Path,
    tensors: Mapping[str, Tensor],
    places: Mapping[str, str],
) -> LoadReport:
    """Load `tensors[name]` into entry `places[name]` of the model's state dict."""
    own = model.state_dict()
    fitting = {place: tensors[name] for name, place in places.items() if place in own}
    _check_shapes(fitting, own, backbone, path)
    names = _encoder_names(model)
    loaded = [name for name in names if name in fitting]
    unused = tuple(name for name, place in places.items() if place not in own)
    if len(loaded) < SMALLEST_PART * len(names) or len(loaded) < len(unused):
        raise ConfigError(
            f"{path} does not fit {backbone}: of its {len(places)} weights only {len(loaded)} have "
            f"a place among the {len(names)} of the network.",
            hint="Give weights of the same network, or use --weights none.",
        )
    model.load_state_dict(fitting, strict=False)
    return LoadReport(
        source=str(path),
        loaded=len(loaded),
        total=len(names),
        fresh=tuple(n.removeprefix("encoder.") for n in names if n not in fitting),
        unused=unused,
        head="head.weight" in fitting,
    )


def _own_places(tensors: Mapping[str, Tensor], model: Classifier) -> dict[str, str]:
    """Map weights that peerdg saved: names stay, the head only if the class counts match."""
    head = tensors.get("head.weight")
    keep_head = head is not None and head.shape == model.head.weight.shape
    return {name: name for name in tensors if keep_head or not name.startswith("head.")}


def _foreign_places(tensors: Mapping[str, Tensor], last_layer: tuple[str, ...]) -> dict[str, str]:
    """Map weights of other libraries into the encoder, with outdated names renewed."""
    # DataParallel and its kin put the network one level deeper.
    prefix = "module." if all(name.startswith("module.") for name in tensors) else ""
    places = {}
    for stored in tensors:
        name = stored.removeprefix(prefix)
        if any(name.startswith(f"{layer}.") for layer in last_layer):
            continue
        for former, today in _FORMER_NAMES:
            name = re.sub(former, today, name)
        places[stored] = f"encoder.{name}"
    return places


def _is_own(tensors: Iterable[str]) -> bool:
    """Whether peerdg saved them: an encoder, a head, and nothing else."""
    return {name.partition(".")[0] for name in tensors} == {"encoder", "head"}


def _last_layer(model: Classifier, backbone: str) -> tuple[str, ...]:
    known = described(model.encoder) if backbone.startswith(TIMM) else BACKBONES[backbone]
    return known.last_layer


def _encoder_names(model: Classifier) -> list[str]:
    return [n for n in model.state_dict() if n.startswith("encoder.") and not n.endswith(_COUNTER)]


def _check_shapes(
    fitting: Mapping[str, Tensor], own: Mapping[str, Tensor], backbone: str, path: Path
) -> None:
    for name, tensor in fitting.items():
        if tensor.shape != own[name].shape:
            raise ConfigError(
                f"{path} does not fit {backbone}: '{name.removeprefix('encoder.')}' has the shape "
                f"{list(tensor.shape)} in the file and {list(own[name].shape)} in the network.",
                hint="Give weights of the same network, or use --weights none.",
            )


def _check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise DamagedError(
                f"{path} is damaged: '{name}' has values that are not finite.",
                hint="Copy it again from its origin.",
            )


def _some(names: tuple[str, ...]) -> str:
    """Layers rather than tensors, and not too many of them."""
    layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
    more = f" and {len(layers) - SHOWN} more" if len(layers) > SHOWN else ""
    return ", ".join(layers[:SHOWN]) + more
