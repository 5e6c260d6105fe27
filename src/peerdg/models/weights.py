"""Load initial weights: find or download a file, reject pickles, load matching tensors.

A file may contain the whole network as stored by torchvision, timm or the CaffeNet conversions, a
part of it (`features.*`), or a model saved by peerdg. The last layer in files from other libraries
belongs to different classes and is never loaded.
"""

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import torch
from safetensors.torch import load_file
from torch import Tensor

from peerdg.errors import ConfigError, DamagedError, DataError
from peerdg.files import sha256
from peerdg.models.backbones import described, import_timm
from peerdg.models.classifier import Classifier
from peerdg.models.names import BACKBONES, TIMM, check_backbone
from peerdg.terminal import visible

MIN_SHARE = 0.1  # minimum fraction of the encoder's tensors that a file must contain
MAX_SHOWN = 4  # maximum number of layers named in a message
# Outdated names of ViT's MLP layers in torchvision's published weights, and current names.
_FORMER_NAMES = ((r"\.mlp\.linear_1\.", ".mlp.0."), (r"\.mlp\.linear_2\.", ".mlp.3."))
_COUNTER = "num_batches_tracked"  # has no effect and is missing in older files
_HUB_FILE = "model.safetensors"


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """Source and coverage of the initial weights."""

    source: str  # path of the file, or "none"
    loaded: int  # number of loaded encoder tensors
    total: int  # number of encoder tensors
    fresh: tuple[str, ...] = ()  # encoder tensors with random initial values
    unused: tuple[str, ...] = ()  # unused tensors in the file, except its last layer
    head: bool = False  # whether the head was loaded

    def __str__(self) -> str:
        if self.loaded == 0:
            return "All weights start fresh."
        head = "The head was loaded too." if self.head else "The head starts fresh."
        text = f"{self.loaded} of {self.total} weights loaded from {self.source}. {head}"
        if self.fresh:
            text += f" Fresh: {_some(self.fresh)}."
        if self.unused:
            text += f" Not used from the file: {_some(self.unused)}."
        return text


def weights_file(backbone: str, weights: str) -> Path | None:
    """Return the file with the initial weights, downloaded if necessary, or None for `"none"`."""
    if weights == "none":
        return None
    if weights == "imagenet":
        return _hub_file(backbone) if backbone.startswith(TIMM) else imagenet_file(backbone)
    if not Path(weights).is_file():
        raise DataError(f"Weights file not found: {weights}.", hint="Check --weights.")
    return Path(weights)


def imagenet_file(backbone: str) -> Path:
    """Return the file with torchvision's weights, verified by the hash in its name."""
    from peerdg._vision import models  # imported here, see `backbones`

    check_backbone(backbone, "imagenet")
    url = models.get_model_weights(backbone)[BACKBONES[backbone].imagenet].url
    path = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlsplit(url).path).name
    if not path.is_file():
        download(url, path)
    elif not sha256(path).startswith(_hash_in(path)):
        raise DamagedError(
            f"{path} does not match the hash in its name.", hint="Remove it to download it again."
        )
    return path


def download(url: str, path: Path) -> None:
    """Download `url` to `path` atomically, and verify the hash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        torch.hub.download_url_to_file(url, str(path), _hash_in(path), progress=False)
    except (OSError, HTTPException) as error:
        raise ConfigError(
            f"Cannot download the weights from {url}: {error}.",
            hint=f"Place the file at {path}, or pass --weights FILE with its --backbone.",
        ) from error
    except RuntimeError as error:
        raise DamagedError(
            f"The download of {url} was damaged.", hint=f"Try again or place the file at {path}."
        ) from error


def _hash_in(path: Path) -> str:
    """Return `b8a52dc0` for `squeezenet1_1-b8a52dc0.pth`."""
    return path.stem.rpartition("-")[2]


def _hub_file(name: str) -> Path:
    """Return the published weights of `timm:NAME` in the Hugging Face cache."""
    repository = import_timm(name).get_pretrained_cfg(name.removeprefix(TIMM)).hf_hub_id
    if not repository:
        raise ConfigError(
            f"timm has no published weights for {name}.",
            hint="Use --weights none, or pass a file with --weights FILE.",
        )
    hub = importlib.import_module("huggingface_hub")
    try:
        return Path(hub.hf_hub_download(repository, _HUB_FILE))
    except (OSError, ValueError) as error:  # base classes of the hub's errors
        raise ConfigError(
            f"Cannot download the weights from https://huggingface.co/{repository}: {error}.",
            hint="Pass the file with --weights FILE, or use --weights none.",
        ) from error


def initialize(model: Classifier, backbone: str, weights: str) -> LoadReport:
    """Load initial weights into a new classifier with the named backbone.

    `weights` is `"none"`, `"imagenet"` for the published weights, or a `.safetensors`, `.pth` or
    `.pt` file.

    Raises:
        ConfigError: If the weights cannot be downloaded or belong to another network.
        DamagedError: If the file is damaged or contains anything but tensors of finite numbers.
    """
    path = weights_file(backbone, weights)
    own = model.state_dict()
    names = [n for n in own if n.startswith("encoder.") and not n.endswith(_COUNTER)]
    if path is None:
        return LoadReport(source="none", loaded=0, total=len(names))
    tensors = load_weights(path)
    places = _places(tensors, model, backbone)
    fitting = {place: tensors[name] for name, place in places.items() if place in own}
    loaded = sum(name in fitting for name in names)
    unused = tuple(name for name, place in places.items() if place not in own)
    problem = ""
    if loaded < MIN_SHARE * len(names) or loaded < len(unused):
        problem = f"only {loaded} of its {len(places)} weights match the network's {len(names)}"
    for name, tensor in fitting.items():
        if tensor.shape != own[name].shape:
            shapes = f"{list(tensor.shape)} instead of {list(own[name].shape)}"
            problem = f"'{name.removeprefix('encoder.')}' has the shape {shapes}"
    if problem:
        raise ConfigError(
            f"{path} does not fit {backbone}: {problem}.",
            hint="Pass weights of the same network or use --weights none.",
        )
    for name, tensor in fitting.items():
        is_plain = tensor.layout is torch.strided and tensor.device.type == "cpu"
        if not is_plain or tensor.is_complex() or not tensor.float().isfinite().all():
            raise DamagedError(
                f"{path} is damaged: '{visible(name)}' has non-finite values.",
                hint="Copy it again from its origin.",
            )
    model.load_state_dict(fitting, strict=False)
    return LoadReport(
        source=str(path),
        loaded=loaded,
        total=len(names),
        fresh=tuple(n.removeprefix("encoder.") for n in names if n not in fitting),
        unused=unused,
        head="head.weight" in fitting,
    )


def _places(tensors: Mapping[str, Tensor], model: Classifier, backbone: str) -> dict[str, str]:
    """Map tensor names in a file to names in the network."""
    if {name.partition(".")[0] for name in tensors} == {"encoder", "head"}:  # saved by peerdg
        head = tensors.get("head.weight")
        keep_head = head is not None and head.shape == model.head.weight.shape
        return {name: name for name in tensors if keep_head or not name.startswith("head.")}
    known = described(model.encoder) if backbone.startswith(TIMM) else BACKBONES[backbone]
    return _foreign_places(tensors, known.last_layer)


def _foreign_places(tensors: Mapping[str, Tensor], last_layer: tuple[str, ...]) -> dict[str, str]:
    """Map weight names from other libraries, including outdated ones, to names in the encoder."""
    # DataParallel adds this prefix.
    prefix = "module." if all(name.startswith("module.") for name in tensors) else ""
    places = {}
    for stored in tensors:
        name = stored.removeprefix(prefix)
        if any(name.startswith(f"{layer}.") for layer in last_layer):
            continue
        for former, current in _FORMER_NAMES:
            name = re.sub(former, current, name)
        places[stored] = f"encoder.{name}"
    return places


def load_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict from a .safetensors file, or from a .pth file of tensors only."""
    if path.suffix not in (".safetensors", ".pth", ".pt"):
        raise DataError(f"{path} is not a weights file.", hint="Use a .safetensors or .pth file.")
    try:
        return load_file(path) if path.suffix == ".safetensors" else _load_pth(path)
    except Exception as error:  # torch.load does not document its exceptions for hostile files
        raise DamagedError(
            f"Cannot load {path}: it is damaged or contains more than tensors.",
            hint="Use a .safetensors file, or a .pth state dict of tensors.",
        ) from error


def _load_pth(path: Path) -> dict[str, Tensor]:
    """Read the tensors in a .pth file without executing pickled code.

    The file is memory-mapped if its format allows it, so that wrong sizes in the file allocate no
    memory. Only tensors that match the network are read.
    """
    with path.open("rb") as file:
        is_zip = file.read(4) == b"PK\x03\x04"  # otherwise torch's format before version 1.6
    loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict) or not all(isinstance(v, Tensor) for v in loaded.values()):
        raise ValueError("not a state dict")
    return {str(name): value.detach() for name, value in loaded.items()}


def _some(names: tuple[str, ...]) -> str:
    """List the layers that tensors belong to, at most `MAX_SHOWN`."""
    layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
    more = f" and {len(layers) - MAX_SHOWN} more" if len(layers) > MAX_SHOWN else ""
    return ", ".join(layers[:MAX_SHOWN]) + more
