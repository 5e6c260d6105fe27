"""A model on disk: weights as safetensors, everything else as JSON beside them. Never pickle.

Files of `model/`:

* `model.safetensors`: the weights
* `model.json`: backbone, class names, normalisation, image sizes, how it was trained, checksums
* `MODEL_CARD.md`: the same for a person, written by `peerdg.export.card`; nothing reads it
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from peerdg.errors import ConfigError, DamagedError, DataError, OutputError
from peerdg.files import read_text, replace_atomically, sha256, usual_mode
from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import Classifier, as_classifier
from peerdg.models.names import OWN as OWN
from peerdg.version import __version__

WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"
FORMAT = 1


def save_model(
    folder: Path,
    model: Classifier,
    *,
    backbone: str,
    image_size: int,
    stored_size: int | None = None,
    training: Mapping[str, Any] | None = None,
    progress: Mapping[str, Any] | None = None,
) -> str:
    """Write `model` as a folder that `load_stored` reads; returns the SHA-256 of its weights.

    Args:
        folder: The folder to make.
        model: The network; `describe_model` explains the rest.
        backbone: Its name, or `OWN`.
        image_size: Side of the images that the network sees.
        stored_size: Side of the squares that files are decoded to first.
        training: Where the model comes from and how good it is.
        progress: How far it was trained.
    """
    description = describe_model(
        model,
        backbone=backbone,
        image_size=image_size,
        stored_size=stored_size,
        training=training,
        progress=progress,
    )
    return write_model(folder, model.state_dict(), description)


def describe_model(
    model: Classifier,
    *,
    backbone: str,
    image_size: int,
    stored_size: int | None = None,
    training: Mapping[str, Any] | None = None,
    progress: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What is stored beside the weights of `model`, without checksums.

    Args:
        model: The network with its class names and normalisation.
        backbone: Its name, or `OWN`.
        image_size: Side of the images that the network sees.
        stored_size: Side of the squares that files are decoded to before they are resized to
            `image_size`, as those it learnt from were; None if it is the same.
        training: Where the model comes from and how good it is, as plain values, for its card.
        progress: How far it was trained, as `training_progress` gives it; None if that is over.
    """
    return {
        "format": FORMAT,
        "backbone": backbone,
        "classes": list(model.classes),
        "mean": model.mean.flatten().tolist(),
        "std": model.std.flatten().tolist(),
        "image_size": image_size,
        "stored_size": stored_size or image_size,
        "training": dict(training or {}),
        "progress": dict(progress or {"complete": True}),
    }


def training_progress(
    *, epoch: int, epochs: int, pretrain_epoch: int, pretrain_epochs: int, complete: bool
) -> dict[str, Any]:
    """How far a model was trained, as plain values for its description."""
    return {
        "complete": complete,
        "epoch": epoch,
        "epochs": epochs,
        "pretrain_epoch": pretrain_epoch,
        "pretrain_epochs": pretrain_epochs,
    }


def how_far(description: Mapping[str, Any]) -> str | None:
    """How far the model of an unfinished run was trained; None if its training was completed."""
    progress = description.get("progress") or {"complete": True}
    if progress["complete"]:
        return None
    if progress["epoch"]:
        return f"trained for {progress['epoch']} of {progress['epochs']} epochs"
    before = f"{progress['pretrain_epoch']} of {progress['pretrain_epochs']} epochs"
    return f"pre-trained only, for {before}"


def write_model(folder: Path, tensors: Mapping[str, Tensor], description: dict[str, Any]) -> str:
    """Write weights and description as a model folder; returns the SHA-256 of the weights."""
    with replace_atomically(folder) as temporary:
        temporary.mkdir()
        save_tensors(temporary / WEIGHTS, dict(tensors))
        digest = sha256(temporary / WEIGHTS)
        made_with = {"peerdg": __version__, "torch": torch.__version__}
        description = {**description, "weights_sha256": digest, **made_with}
        description["sha256"] = _checksum(description)
        text = json.dumps(description, indent=2, ensure_ascii=False)
        (temporary / DESCRIPTION).write_text(text + "\n", "utf-8")
    return digest


def load_stored(folder: Path, model: nn.Module | None = None) -> tuple[Classifier, dict[str, Any]]:
    """The classifier in a model folder, in eval mode, and its description.

    Args:
        folder: The model folder.
        model: The network to put the weights into, if it was the user's own: a `Classifier`, or
            the module that one was made of.

    Raises:
        ConfigError: If the network was the user's own and `model` is not given.
        DataError: If there is no model in `folder`.
        DamagedError: If a file was changed or is not what its name says.
    """
    if not os.path.lexists(folder / DESCRIPTION):
        raise DataError(
            f"There is no model in {folder}: {DESCRIPTION} is missing.",
            hint="Give a run folder or a model folder; a run has a model from its first evaluation "
            "on.",
        )
    try:
        description = json.loads(read_text(folder / DESCRIPTION))
        if description["sha256"] != _checksum(description):
            raise DamagedError(f"{folder / DESCRIPTION} is not what was saved.")
        if sha256(folder / WEIGHTS) != description["weights_sha256"]:
            raise DamagedError(f"{folder / WEIGHTS} is not what was saved.")
        if model is None:
            model = _build(description)
        elif not isinstance(model, Classifier):
            model = as_classifier(
                model,
                classes=description["classes"],
                mean=description["mean"],
                std=description["std"],
                image_size=description["image_size"],
            )
        elif list(model.classes) != description["classes"]:
            raise ConfigError(
                f"The network for {folder} has the classes {', '.join(model.classes)}; the weights "
                f"were trained with {', '.join(description['classes'])}.",
            )
        model.load_state_dict(load_file(folder / WEIGHTS))
        description.setdefault("stored_size", description["image_size"])
        description.setdefault("training", {})
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise DamagedError(
            f"The model in {folder} is damaged: {error}.", hint="Copy it again from its origin."
        ) from error
    return model.eval(), description


def _build(description: dict[str, Any]) -> Classifier:
    if description["backbone"] == OWN:
        raise ConfigError(
            "This model is a network of your own, which peerdg cannot build.",
            hint="Give it: peerdg.load_model(folder, network=your_classifier).",
        )
    return build_classifier(
        description["backbone"],
        classes=description["classes"],
        mean=description["mean"],
        std=description["std"],
    )


def load_weights(path: Path) -> dict[str, Tensor]:
    """A state dict from a .safetensors file, or from a .pth file that holds tensors only.

    Raises:
        DataError: If the file is missing or of another kind.
        DamagedError: If it is not what its name says, or holds anything but tensors.
    """
    if not path.is_file():
        raise DataError(f"There is no weights file {path}.", hint="Check --weights.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix in (".pth", ".pt"):
            loaded = torch.load(path, map_location="cpu", weights_only=True)
            return {str(name): value for name, value in _state_dict(loaded).items()}
    except Exception as error:  # torch.load documents no set of exceptions for hostile files
        raise DamagedError(
            f"{path} was refused: it is damaged or holds more than tensors.",
            hint="Weights must be a .safetensors file, or a .pth state dict of tensors.",
        ) from error
    raise DataError(f"{path} is not a weights file.", hint="Use a .safetensors or .pth file.")


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write named tensors as safetensors.

    Raises:
        OutputError: If the disk does not take them.
    """
    # The format wants plain contiguous CPU tensors; channels-last weights are laid out anew.
    # Tied weights share memory, which the format refuses: the second one is copied.
    ready: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        taken = {other.data_ptr() for other in ready.values()}
        ready[name] = plain.clone() if plain.data_ptr() in taken else plain
    try:
        with usual_mode(path):
            save_file(ready, path)
    except SafetensorError as error:
        raise OutputError(
            f"Cannot write {path.parent}: {error}.",
            hint="Free some space and start again; what was saved before is intact.",
        ) from error


def _checksum(description: dict[str, Any]) -> str:
    """SHA-256 of all that a description says besides it: a class name is as vital as a weight."""
    said = {name: value for name, value in description.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _state_dict(loaded: Any) -> dict[str, Tensor]:
    """The tensors of a state dict, also when it lies under the usual key `state_dict`."""
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict) or not all(isinstance(v, Tensor) for v in loaded.values()):
        raise ValueError("not a state dict")
    return loaded
