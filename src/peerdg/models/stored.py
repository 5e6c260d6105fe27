"""A model on disk: weights as safetensors, everything else as JSON beside them. Never pickle.

Files of `model/`:

* `model.safetensors`: the weights
* `model.json`: backbone and added layers, class names, normalisation, image sizes, how it was
  trained, which runs it was made of, checksums
* `MODEL_CARD.md`: the same for a person, written by `peerdg.run.card`; nothing reads it
"""

import copy
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from peerdg.errors import ConfigError, DamagedError, DataError, NumericalError, OutputError
from peerdg.files import (
    refuse_links,
    replace_atomically,
    sha256,
)
from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import Classifier, as_classifier
from peerdg.models.description import (
    HINT,
    checksum,
    format_of,
    is_ensemble,
    read_description,
)
from peerdg.models.ensemble import added_layers, ensemble, networks_of
from peerdg.models.names import OWN as OWN
from peerdg.terminal import visible
from peerdg.version import __version__

WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"


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
    """Describe `model` for `model.json`, without checksums.

    Args:
        model: The network with its class names and normalisation.
        backbone: Its name, or `OWN`.
        image_size: Side of the images that the network sees.
        stored_size: Side of the squares that files are decoded to before they are resized to
            `image_size`, as those it learnt from were; None if it is the same.
        training: Where the model comes from and how good it is, as plain values, for its card.
        progress: How far it was trained, as `training_progress` gives it; None if that is over.
    """
    added, combined = added_layers(model), networks_of(model)
    description = {
        "backbone": backbone,
        **({"added_layers": list(added)} if added else {}),
        **({"combined": asdict(combined)} if combined else {}),
        "classes": list(model.classes),
        "mean": model.mean.flatten().tolist(),
        "std": model.std.flatten().tolist(),
        "image_size": image_size,
        "stored_size": stored_size or image_size,
        "training": dict(training or {}),
        "progress": dict(progress or {"complete": True}),
    }
    return {"format": format_of(description), **description}


def training_progress(
    *, epoch: int, epochs: int, pretrain_epoch: int, pretrain_epochs: int, complete: bool
) -> dict[str, Any]:
    """The progress of a model's training, as plain values for its description."""
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
        description["sha256"] = checksum(description)
        text = json.dumps(description, indent=2, ensure_ascii=False)
        (temporary / DESCRIPTION).write_text(text + "\n", "utf-8")
    return digest


def load_stored(folder: Path, model: nn.Module | None = None) -> tuple[Classifier, dict[str, Any]]:
    """The classifier in a model folder, in eval mode, and its description.

    Args:
        folder: The model folder.
        model: The network to put the weights into, if it was the user's own: a `Classifier`, or
            the module that one was made of; without or with the layers that a method added; one
            member of an ensemble, or the whole of it.

    Raises:
        ConfigError: If the network was the user's own and `model` is not given.
        DataError: If there is no model in `folder`.
        DamagedError: If a file does not match its checksum or type.
        NumericalError: If a weight is NaN or infinite.
    """
    if not os.path.lexists(folder / DESCRIPTION):
        raise DataError(
            f"There is no model in {folder}: {DESCRIPTION} is missing.",
            hint="Give a run folder or a model folder; a run has a model from its first evaluation "
            "on.",
        )
    description = read_description(folder / DESCRIPTION)
    try:
        if sha256(folder / WEIGHTS) != description["weights_sha256"]:
            raise DamagedError(f"{folder / WEIGHTS} is not what was saved.", hint=HINT)
        if model is None:
            _check_shapes(folder / WEIGHTS, description)
            model = _build_member(description)
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
        model = _complete(model, folder / WEIGHTS, description)
        model.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise DamagedError(f"The model in {folder} is damaged: {error}.", hint=HINT) from error
    _require_finite(model, folder)
    return model.eval(), description


def model_folder(path: Path) -> Path:
    """The model of a run folder, or the folder itself if it is a model folder.

    Raises:
        DamagedError: If the folder holds a link, pipe or device.
    """
    if any(os.path.lexists(path / part) for part in ("model", DESCRIPTION)):
        refuse_links(path)
    return path / "model" if (path / "model").is_dir() else path


def _require_finite(model: nn.Module, folder: Path) -> None:
    """Refuse weights with which no probability can be computed.

    A buffer may have negative infinities: masks of attention do.
    """
    parameters = dict(model.named_parameters())
    for name, tensor in model.state_dict().items():
        usable = tensor.isfinite()
        if name not in parameters:
            usable |= tensor == -torch.inf
        if not usable.all():
            raise NumericalError(
                f"The model in {folder} has values that are NaN or infinite in '{visible(name)}': "
                "it cannot predict anything.",
                hint="Use another model, or train it again.",
            )


def _complete(network: Classifier, path: Path, description: dict[str, Any]) -> Classifier:
    """`network` with the layers added to it, and as often as the folder holds it."""
    if whole := networks_of(network):
        if len(whole.members) != _members(description):
            raise ValueError(f"it has {_members(description)} networks, not {len(whole.members)}")
        if whole.outputs != description["combined"]["outputs"]:
            raise ValueError(f"it averages {description['combined']['outputs']}")
        return network
    network = network.with_layers(description["added_layers"])
    _check_members(path, network, description)
    return _several(network, description)


def _check_members(path: Path, network: Classifier, description: dict[str, Any]) -> None:
    """Compare the stored tensors of an ensemble with its first network, before there are more."""
    if not is_ensemble(description):
        return
    stored = _stored_shapes(path)
    body = {name: list(tensor.shape) for name, tensor in network.body.state_dict().items()}
    for member in range(_members(description)):
        prefix = f"encoder.{member}."
        found = {
            name.removeprefix(prefix): s for name, s in stored.items() if name.startswith(prefix)
        }
        if found != body:
            raise ValueError(f"network {member + 1} of {_members(description)} is another one")


def _check_shapes(path: Path, description: dict[str, Any]) -> None:
    """Compare the stored tensors with those of the named network, before memory is taken for it.

    A file of a few megabytes may name a network of gigabytes.
    """
    try:
        with torch.device("meta"):  # shapes without numbers
            network = _build_member(description).with_layers(description["added_layers"])
            network = _several(network, description)
    except RuntimeError:  # e.g. torchvision's RegNet computes its widths with tensors
        return
    needed = {name: list(tensor.shape) for name, tensor in network.state_dict().items()}
    stored = _stored_shapes(path)
    for name in sorted(needed.keys() | stored.keys()):
        if needed.get(name) != stored.get(name):
            raise ValueError(
                f"'{visible(name)}' has the shape {stored.get(name, 'of nothing: it is missing')}, "
                f"{visible(description['backbone'])} needs {needed.get(name, 'no such weight')}"
            )


def _stored_shapes(path: Path) -> dict[str, list[int]]:
    with safe_open(path, "pt") as file:
        return {name: file.get_slice(name).get_shape() for name in file.keys()}


def _build_member(description: dict[str, Any]) -> Classifier:
    """The described network, of an ensemble one of them, without the layers added to it."""
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


def _several(network: Classifier, description: dict[str, Any]) -> Classifier:
    """For an ensemble, as many copies of the network as it has members; else itself."""
    if not is_ensemble(description):
        return network
    copies = [network, *(copy.deepcopy(network) for _ in range(_members(description) - 1))]
    return ensemble(copies, outputs=description["combined"]["outputs"])


def _members(description: dict[str, Any]) -> int:
    """How many networks the folder holds."""
    return len(description["combined"]["members"]) if is_ensemble(description) else 1


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
        path.touch()
        mode = path.stat().st_mode
        save_file(ready, path)
        path.chmod(mode)  # safetensors makes files that no other user may read
    except SafetensorError as error:
        raise OutputError(
            f"Cannot write {path.parent}: {error}.",
            hint="Free some space and start again; what was saved before is intact.",
        ) from error
