"""Initial weights: find or download a file, refuse a pickle, load the tensors that match."""

import hashlib
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import torch
from safetensors.torch import load_file
from torch import Tensor

from peerdg.errors import ConfigError, DamagedError, DataError
from peerdg.files import open_regular, replace_atomically, sha256
from peerdg.models.backbones import described, import_timm
from peerdg.models.classifier import Classifier
from peerdg.models.names import BACKBONES, TIMM, check_backbone
from peerdg.terminal import visible

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


CONNECT_SECONDS = 4.0  # until a server has answered, name resolution included
STALL_SECONDS = 30.0  # without a single byte


def imagenet_file(backbone: str) -> Path:
    """The file with torchvision's weights for `backbone`, verified by the hash in its name.

    Raises:
        ConfigError: If there are none, or they are neither cached nor downloadable.
        DamagedError: If the file does not match its checksum.
    """
    from peerdg._vision import models  # late, as in `backbones`

    check_backbone(backbone, "imagenet")
    url = models.get_model_weights(backbone)[BACKBONES[backbone].imagenet].url
    path = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlsplit(url).path).name
    if not path.is_file():
        download(url, path)
    elif not sha256(path, follow_links=True).startswith(_hash_in(path)):
        raise DamagedError(
            f"{path} is damaged: its content does not have the hash in its name.",
            hint="Remove it, and it is downloaded again; or place a good copy there.",
        )
    return path


def download(url: str, path: Path) -> None:
    """Fetch `url` into `path`, which appears whole and verified or not at all."""
    place = f"place the file at {path}"
    with reach(url, place=place) as response, replace_atomically(path) as temporary:
        digest = hashlib.sha256()
        with temporary.open("wb") as file:
            for chunk in _chunks(response, url, place):
                digest.update(chunk)
                file.write(chunk)
        if not digest.hexdigest().startswith(_hash_in(path)):
            raise DamagedError(
                f"The download of {url} was damaged on the way.",
                hint=f"Try again, or {place}.",
            )


def reach(url: str, *, place: str) -> HTTPResponse:
    """Open a connection to `url` within a few seconds.

    Args:
        url: What to read.
        place: What a person can do instead, for the error's hint.

    Raises:
        ConfigError: If the server does not respond in time.
    """
    answer: Future[HTTPResponse] = Future()

    def connect() -> None:
        try:
            answer.set_result(urlopen(url, timeout=STALL_SECONDS))  # noqa: S310  (https, from torchvision)
        except (OSError, HTTPException) as error:
            if isinstance(error, HTTPError):
                error.close()  # the server's page about the error
            answer.set_exception(error)

    # In a thread of its own, because the resolution of names has no time limit.
    Thread(target=connect, daemon=True).start()
    try:
        return answer.result(timeout=CONNECT_SECONDS)
    except (OSError, HTTPException) as error:  # the time limit is an OSError, too
        raise _unreachable(url, place, error) from error


def _chunks(response: HTTPResponse, url: str, place: str) -> Iterator[bytes]:
    try:
        while chunk := response.read(2**20):
            yield chunk
    except (OSError, HTTPException) as error:
        raise _unreachable(url, place, error) from error


def _unreachable(url: str, place: str, error: Exception) -> ConfigError:
    reason = str(error) or f"no answer within {CONNECT_SECONDS:.0f} seconds"
    return ConfigError(
        f"The weights cannot be downloaded from {url}: {reason}.",
        hint=f"Download them elsewhere and {place}, or use --weights none.",
    )


def _hash_in(path: Path) -> str:
    """`b8a52dc0` of `squeezenet1_1-b8a52dc0.pth`."""
    return path.stem.rpartition("-")[2]


def load_weights(path: Path) -> dict[str, Tensor]:
    """A state dict from a .safetensors file, or from a .pth file that holds tensors only.

    Raises:
        DataError: If the file is missing or of another kind.
        DamagedError: If it does not match its type, or holds anything but plain tensors.
    """
    if not path.is_file():
        raise DataError(f"There is no weights file {path}.", hint="Check --weights.")
    if path.suffix not in (".safetensors", ".pth", ".pt"):
        raise DataError(f"{path} is not a weights file.", hint="Use a .safetensors or .pth file.")
    try:
        tensors = load_file(path) if path.suffix == ".safetensors" else _load_pth(path)
    except Exception as error:  # torch.load documents no set of exceptions for hostile files
        raise DamagedError(
            f"{path} was refused: it is damaged or holds more than tensors.",
            hint="Weights must be a .safetensors file, or a .pth state dict of tensors.",
        ) from error
    _require_plain(tensors, path)
    return tensors


def _load_pth(path: Path) -> dict[str, Tensor]:
    """The tensors of a .pth file, mapped where its format allows it.

    Mapping takes no memory for sizes that the file only claims, and unpacks nothing.
    """
    with open_regular(path, follow_links=True) as file:
        is_zip = file.read(4) == b"PK\x03\x04"  # else torch's format before version 1.6
    loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    return {str(name): value.detach() for name, value in _state_dict(loaded).items()}


_KINDS = {
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
}  # fmt: skip
_SHARED = 4  # times that all tensors together may be larger than their file: tied weights share


def _require_plain(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse tensors of unusual kinds, before anything is computed with them.

    Raises:
        DamagedError: For a sparse, nested, quantized or empty shell of a tensor, a type that
            weights do not have, or one that repeats few stored numbers many times: a file of a
            few bytes could claim all memory.
    """
    for name, tensor in tensors.items():
        stored = tensor.layout is torch.strided and not tensor.is_nested
        if not stored or tensor.device.type != "cpu" or tensor.dtype not in _KINDS:
            problem = f"'{visible(name)}' is no plain tensor of numbers"
        elif tensor.nbytes > tensor.untyped_storage().nbytes():
            problem = f"'{visible(name)}' claims more numbers than are stored"
        else:
            continue
        raise DamagedError(f"{path} was refused: {problem}.", hint=_PLAIN)
    if sum(tensor.nbytes for tensor in tensors.values()) > _SHARED * path.stat().st_size:
        raise DamagedError(f"{path} was refused: it claims more than it stores.", hint=_PLAIN)


_PLAIN = "Weights must be dense tensors of the usual types; save them as .safetensors."


def _state_dict(loaded: Any) -> dict[str, Tensor]:
    """The tensors of a state dict, also when it lies under the usual key `state_dict`."""
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict) or not all(isinstance(v, Tensor) for v in loaded.values()):
        raise ValueError("not a state dict")
    return loaded


HUB = "https://huggingface.co"
FILE = "model.safetensors"


def hub_file(name: str) -> Path:
    """The published weights of `timm:NAME`, in the Hugging Face cache or downloaded into it."""
    repository = import_timm(name).get_pretrained_cfg(name.removeprefix(TIMM)).hf_hub_id
    if not repository:
        raise ConfigError(
            f"timm publishes no weights for {name}.",
            hint="Use --weights none, or give a file with --weights FILE.",
        )
    hub = importlib.import_module("huggingface_hub")
    cached = hub.try_to_load_from_cache(repository, FILE)
    if isinstance(cached, str):
        return Path(cached)
    url = f"{HUB}/{repository}/resolve/main/{FILE}"
    reach(url, place=f"give the file itself with --weights {FILE}").close()
    return Path(hub.hf_hub_download(repository, FILE))
