"""Store a model on disk: weights as safetensors and a description as JSON, never as pickle.

Files in `model/`:

* `model.safetensors`: the weights
* `model.json`: backbone, added layers, class names, normalization, image sizes, training, combined
  runs, checksums
* `MODEL_CARD.md`: the same for human readers, written by `peerdg.run.model` and never read back
"""

import copy
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from peerdg import __version__
from peerdg.errors import ConfigError, DamagedError, DataError, NumericalError, OutputError
from peerdg.files import read_json, reading, refuse_links, replace_atomically, sha256, write_json
from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import Classifier, as_classifier
from peerdg.models.ensemble import MeanHead, added_layers, ensemble
from peerdg.models.names import OWN as OWN
from peerdg.options import nearest_path
from peerdg.terminal import visible

WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"
FORMAT = 1
_HINT = "Copy it again from its origin."


def describe_model(
    model: Classifier,
    *,
    backbone: str,
    image_size: int,
    stored_size: int | None = None,
    training: Mapping[str, Any] | None = None,
    progress: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Describe `model` for `model.json`, without checksums.

    Args:
        model: Network with its class names and normalization.
        backbone: Name of the backbone, or `OWN`.
        image_size: Side of the network's input images.
        stored_size: Side to which image files are decoded first, if different.
        training: Data, method, settings and results of training, for the model card.
        progress: Number of trained epochs, see `how_far`. None if training is complete.
    """
    description = {
        "format": FORMAT,
        "backbone": backbone,
        "added_layers": list(added_layers(model)),
        "classes": list(model.classes),
        "mean": model.mean.flatten().tolist(),
        "std": model.std.flatten().tolist(),
        "image_size": image_size,
        "stored_size": stored_size or image_size,
        "training": dict(training or {}),
        "progress": dict(progress or {"complete": True}),
    }
    if isinstance(model.head, MeanHead):
        members = [{"name": f"network {n + 1}"} for n in range(len(model.head.dims))]
        combined = {"rule": "ensemble", "members": members, "outputs": model.head.outputs}
        description["combined"] = combined
    return description


def save_model(folder: Path, model: Classifier, **about: Any) -> str:
    """Write `model` as a folder for `load_stored` and return the SHA-256 of its weights.

    `about` are the keyword arguments of `describe_model`.
    """
    return write_model(folder, model.state_dict(), describe_model(model, **about))


def write_model(folder: Path, tensors: Mapping[str, Tensor], description: dict[str, Any]) -> str:
    """Write weights and description as a model folder, and return the SHA-256 of the weights."""
    with replace_atomically(folder) as temporary:
        temporary.mkdir()
        save_tensors(temporary / WEIGHTS, tensors)
        digest = sha256(temporary / WEIGHTS)
        made_with = {"peerdg": __version__, "torch": torch.__version__}
        description = {**description, "weights_sha256": digest, **made_with}
        write_json(temporary / DESCRIPTION, {**description, "sha256": checksum(description)})
    return digest


def read_description(path: Path) -> dict[str, Any]:
    """Read a `model.json` and verify its checksum."""
    description: dict[str, Any] = read_json(path, format=FORMAT, hint=_HINT)
    if description.get("sha256") != checksum(description):
        raise DamagedError(f"{visible(str(path))} does not match its checksum.", hint=_HINT)
    return description


def checksum(description: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a description without its checksum."""
    content = {name: value for name, value in description.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def describes_ensemble(description: Mapping[str, Any]) -> bool:
    """Return whether a description belongs to an ensemble."""
    return (description.get("combined") or {}).get("rule") == "ensemble"


def how_far(description: Mapping[str, Any]) -> str | None:
    """Describe the progress of an unfinished run. Return None if training is complete."""
    progress = description.get("progress") or {"complete": True}
    if progress["complete"]:
        return None
    if progress["epoch"]:
        return f"trained for {progress['epoch']} of {progress['epochs']} epochs"
    before = f"{progress['pretrain_epoch']} of {progress['pretrain_epochs']} epochs"
    return f"pre-trained only, for {before}"


def model_folder(path: Path) -> Path:
    """Return the model folder of a run folder, or `path` itself if it is a model folder."""
    if (path / "model").exists() or (path / DESCRIPTION).exists():
        refuse_links(path)
    return path / "model" if (path / "model").is_dir() else path


def require_model(path: Path) -> dict[str, Any]:
    """Read the description of the model in a run folder or model folder."""
    file = model_folder(path) / DESCRIPTION
    if not file.exists():
        if not path.exists():
            hint = nearest_path(path, holding="config.toml") or ""
            hint += f" `peerdg runs {quote(str(path.parent))}` lists runs."
            raise DataError(f"The run folder {path} does not exist.", hint=hint.strip())
        message = f"{path} has no {DESCRIPTION}, so there is no model to load."
        raise DataError(message, hint="A run has a model after its first evaluation.")
    return read_description(file)


def load_stored(path: Path, model: nn.Module | None = None) -> tuple[Classifier, dict[str, Any]]:
    """Load a classifier in eval mode and its description from a run folder or model folder.

    Args:
        path: Run folder or model folder.
        model: Network to load the weights into, if it is a custom one: a `Classifier` or the module
            it was built from, with or without the layers added by a method. For an ensemble, one
            of its networks or the whole ensemble.

    Raises:
        ConfigError: If `model` is missing for a custom network, or has different classes.
        DamagedError: If a file does not match its checksum or the weights do not fit the network.
        NumericalError: If a weight is NaN or infinite.
    """
    description, folder = require_model(path), model_folder(path)
    with reading(folder, hint=_HINT):
        if sha256(folder / WEIGHTS) != description["weights_sha256"]:
            raise DamagedError(f"{folder / WEIGHTS} does not match its checksum.", hint=_HINT)
        network = _with_members(_network(description, model), description)
        network.load_state_dict(load_file(folder / WEIGHTS))
    _require_finite(network, folder)
    return network.eval(), description


def load_weights(network: Classifier, file: Path) -> Classifier:
    """Return a copy of a network in eval mode, with the weights of a safetensors file."""
    network = copy.deepcopy(network).eval()
    with reading(file):
        network.load_state_dict(load_file(file))
    _require_finite(network, file)
    return network


def _network(description: dict[str, Any], model: nn.Module | None) -> Classifier:
    """Build the described network, or wrap the user's network as a classifier."""
    inputs = {name: description[name] for name in ("classes", "mean", "std")}
    if model is not None:
        network = as_classifier(model, **inputs, image_size=description["image_size"])
    elif description["backbone"] == OWN:
        raise ConfigError(
            "This model is a custom network, which peerdg cannot build.",
            hint="Pass it: peerdg.load_model(folder, network=your_classifier).",
        )
    else:
        network = build_classifier(description["backbone"], **inputs)
    if list(network.classes) != description["classes"]:
        raise ConfigError(
            f"The network has the classes {', '.join(network.classes)}. The weights were trained "
            f"with {', '.join(description['classes'])}."
        )
    return network


def _with_members(network: Classifier, description: dict[str, Any]) -> Classifier:
    """Add the stored layers and copy the network for each member of an ensemble."""
    combined = description.get("combined") or {}
    if isinstance(network.head, MeanHead):  # the user passed the whole ensemble
        if network.head.outputs != combined["outputs"]:
            raise ValueError(f"the stored ensemble averages {combined['outputs']}")
        return network
    network = network.with_layers(description["added_layers"])
    if not describes_ensemble(description):
        return network
    others = [copy.deepcopy(network) for _ in combined["members"][1:]]
    return ensemble([network, *others], outputs=combined["outputs"])


def _require_finite(model: nn.Module, place: Path) -> None:
    """Raise if a value is NaN or infinite. Buffers such as attention masks may hold -inf."""
    parameters = dict(model.named_parameters())
    for name, tensor in model.state_dict().items():
        usable = tensor.isfinite()
        if name not in parameters:
            usable |= tensor == -torch.inf
        if not usable.all():
            raise NumericalError(
                f"The model in {place} has NaN or infinite values in '{visible(name)}'.",
                hint="Use another model or train it again.",
            )


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors as safetensors. Raise an `OutputError` if the disk is full."""
    # The format requires contiguous CPU tensors without shared memory. Channels-last weights are
    # converted, and the second of two tied weights is copied.
    ready: dict[str, Tensor] = {}
    pointers: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        ready[name] = plain.clone() if plain.data_ptr() in pointers else plain
        pointers.add(plain.data_ptr())
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(ready, path)
    except SafetensorError as error:
        raise OutputError(
            f"Cannot write {path.parent}: {error}.",
            hint="Free some space and start again. Earlier files are intact.",
        ) from error
    path.chmod(mode)  # safetensors makes files unreadable for other users
