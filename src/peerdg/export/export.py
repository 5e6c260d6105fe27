"""Export a model: the file, its description and card, and a check that it answers the same."""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from peerdg.errors import OutputError
from peerdg.export.formats import FACTS, Format, require_packages
from peerdg.export.writers import Run, origin_of, write_onnx, write_program, write_weights
from peerdg.files import TEMPORARY, replace_atomically, require_replaceable, writing
from peerdg.models.classifier import Classifier, in_eval_mode
from peerdg.models.stored import describes_ensemble
from peerdg.run.model import CARD, model_card
from peerdg.version import __version__

TOLERANCE = 1e-4
_BATCHES = (1, 5)  # the number of images must be free


@torch.no_grad()
def require_same_answers(model: Classifier, exported: Run, *, size: int) -> float:
    """The largest difference between the logits of `model` and of the exported one.

    It is relative to the largest logit where that exceeds 1, since rounding is.

    Args:
        model: The original, in eval mode.
        exported: Runs what was exported, the way a user will.
        size: Side of the images.

    Raises:
        OutputError: If it is more than `TOLERANCE`, or the shapes differ.
    """
    worst = 0.0
    for images in sample_images(size):
        expected = model(images.to(model.head.weight.device)).float().cpu()
        found = exported(images).float().cpu()
        if found.shape != expected.shape:
            raise OutputError(
                f"The exported model gives {tuple(found.shape)} for {len(images)} images, not "
                f"{tuple(expected.shape)}; nothing was written.",
                hint="Please report this with the backbone's name.",
            )
        scale = max(1.0, float(expected.abs().max()))
        difference = float((found - expected).abs().max()) / scale
        if not difference <= TOLERANCE:  # also if it is not a number
            raise OutputError(
                f"The exported model differs from the original by {difference:.2g}, more than "
                f"{TOLERANCE:g}; nothing was written.",
                hint="Choose another --format, and please report this with the backbone's name.",
            )
        worst = max(worst, difference)
    return worst


def sample_images(size: int) -> Iterator[Tensor]:
    """Batches of different lengths: noise, coarse patterns, black and white."""
    random = torch.Generator().manual_seed(0)
    for batch in _BATCHES:
        coarse = torch.randint(0, 256, (batch, 3, 4, 4), generator=random).float()
        smooth = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
        noise = torch.randint(0, 256, (batch, 3, size, size), generator=random).float()
        images = torch.where(torch.arange(batch).view(-1, 1, 1, 1) % 2 == 0, smooth, noise)
        if batch > 3:
            images[2], images[3] = 0.0, 255.0
        yield images.round().clamp(0, 255).to(torch.uint8)


@dataclass(frozen=True)
class Exported:
    """What was written.

    Args:
        path: The model file.
        files: It, its description as JSON, and its card.
        difference: Largest difference of its logits from the original's.
    """

    path: Path
    files: tuple[Path, ...]
    difference: float


def export_model(
    model: Classifier,
    description: Mapping[str, Any],
    output: Path,
    *,
    format: Format,
    overwrite: bool = False,
) -> Exported:
    """Write `model` in `format`, run what was written, and compare.

    Args:
        model: The classifier.
        description: What is stored beside its weights: backbone, sizes, how it was trained.
        output: A file, if it ends as files of the format do; else a folder to make.
        format: One of `FORMATS`.
        overwrite: Whether a file that is there may be replaced. A folder must be new or empty.

    Raises:
        ConfigError: If the format needs a package that is not installed.
        OutputError: If the place is taken or cannot be written, or the exported model answers
            differently; then nothing is left.
    """
    require_packages(format)
    with in_eval_mode(model), _temporary_folder(output, format, overwrite) as (folder, names):
        run = _write(model, description, folder / names.model, format)
        difference = require_same_answers(model, run, size=description["image_size"])
        about = _about(model, description, format)
        text = json.dumps(about, indent=2, ensure_ascii=False) + "\n"
        (folder / names.about).write_text(text, "utf-8")
        card = model_card(
            description,
            load=_how_to_load(model, description, names.model, format),
            remarks=_remarks(description, format, difference),
            normalizes=_normalises(model, description, format),
        )
        (folder / names.card).write_text(card, "utf-8")
    where = output.parent if _is_file(output, format) else output
    return Exported(where / names.model, tuple(where / name for name in names), difference)


class _Names(NamedTuple):
    model: str
    about: str
    card: str


def _is_file(output: Path, format: Format) -> bool:
    return output.suffix.lower() == FACTS[format].suffix


@contextmanager
def _temporary_folder(
    output: Path, format: Format, overwrite: bool
) -> Iterator[tuple[Path, _Names]]:
    """A temporary folder whose files take their places when the block ends well."""
    if not _is_file(output, format):
        if output.is_dir() and any(output.iterdir()):
            raise OutputError(f"{output} is not empty.", hint="Choose a new folder with -o.")
        stem = "weights" if format == "safetensors" else "model"
        with replace_atomically(output) as folder:
            folder.mkdir()
            yield folder, _Names(f"{stem}{FACTS[format].suffix}", "about.json", CARD)
        return
    if output.exists() and not overwrite:
        raise OutputError(f"{output} is there already.", hint="Add --overwrite, or change -o.")
    names = _Names(output.name, f"{output.stem}.json", f"{output.stem}.{CARD}")
    for name in names:
        require_replaceable(output.with_name(name))
    with writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=TEMPORARY) as temporary:
            yield Path(temporary), names
            for name in reversed(names):  # the model last: once it is there, all is
                os.replace(Path(temporary) / name, output.parent / name)


def _write(model: Classifier, description: Mapping[str, Any], path: Path, format: Format) -> Run:
    if format == "safetensors":
        return write_weights(model, path, backbone=description["backbone"])
    write = write_onnx if format == "onnx" else write_program
    about = _about(model, description, format)
    return write(model, path, size=description["image_size"], about=about)


def _about(model: Classifier, description: Mapping[str, Any], format: Format) -> dict[str, Any]:
    """What a program needs to know to use the file."""
    size, inside = description["image_size"], _normalises(model, description, format)
    about = {
        "format": format,
        "backbone": description["backbone"],
        "classes": list(model.classes),
        "image_size": size,
        "stored_size": description["stored_size"],
        "mean": model.mean.flatten().tolist(),
        "std": model.std.flatten().tolist(),
        "normalisation": "inside the model" if inside else "to be done before",
        "input": f"uint8 RGB [batch, 3, {size}, {size}]"
        if inside
        else f"float RGB [batch, 3, {size}, {size}], (value / 255 - mean) / std",
        "output": "logits [batch, classes]",
        "weights_sha256": description.get("weights_sha256", "unknown"),
        "peerdg": __version__,
    }
    if layers := description.get("added_layers"):
        about["added_layers"] = layers
    if combined := description.get("combined"):
        about["combined"] = combined
    if format == "safetensors":
        origin = origin_of(model, description["backbone"])
        about |= {"library": origin.library, "network": list(origin.code)}
    return about


def _normalises(model: Classifier, description: Mapping[str, Any], format: Format) -> bool:
    """Whether what is exported takes images as they are; networks of other libraries do not."""
    if format != "safetensors":
        return True
    return origin_of(model, description["backbone"]).library == "peerdg"


def _how_to_load(
    model: Classifier, description: Mapping[str, Any], name: str, format: Format
) -> list[str]:
    file, size = json.dumps(name), description["image_size"]
    if format == "onnx":
        return [
            "import onnxruntime",
            f"session = onnxruntime.InferenceSession({file})",
            f'logits = session.run(None, {{"images": images}})[0]  # uint8 [n, 3, {size}, {size}]',
        ]
    if format == "torch-export":
        return [
            "import torch",
            f"net = torch.export.load({file}).module()",
            f"logits = net(images)  # uint8 [n, 3, {size}, {size}]",
        ]
    origin = origin_of(model, description["backbone"])
    if origin.library == "peerdg":
        mean, std = model.mean.flatten().tolist(), model.std.flatten().tolist()
        return [
            "import peerdg, safetensors.torch",
            f"# net: peerdg.build_classifier({json.dumps(description['backbone'])}, classes=...,",
            f"#     mean={mean}, std={std})",
            *_how_to_add(description),
            *_how_to_join(description),
            f"net.load_state_dict(safetensors.torch.load_file({file}))",
        ]
    return [
        f"import torch, {origin.library}, safetensors.torch",
        *origin.code,
        f"net.load_state_dict(safetensors.torch.load_file({file})); net.eval()",
        "logits = net((images / 255 - mean) / std)  # mean and std: in the JSON file beside it",
    ]


def _how_to_add(description: Mapping[str, Any]) -> list[str]:
    layers = description.get("added_layers")
    return [f"net = net.with_layers({layers!r}).eval()"] if layers else []


def _how_to_join(description: Mapping[str, Any]) -> list[str]:
    if not describes_ensemble(description):
        return []
    combined = description["combined"]
    members = range(len(combined["members"]))
    return [
        "import copy",
        "from peerdg.models.ensemble import ensemble",
        f"nets = [copy.deepcopy(net) for _ in {members}]",
        f"net = ensemble(nets, outputs={json.dumps(combined['outputs'])}).eval()",
    ]


def _remarks(description: Mapping[str, Any], format: Format, difference: float) -> list[str]:
    size, stored = description["image_size"], description["stored_size"]
    notes = [
        f"Exported as {format}. Its logits differ from the original's by {difference:.1e} at most "
        "on sample images."
    ]
    steps = f"resize it to {stored} x {stored} with Pillow's bilinear filter"
    if stored != size:
        steps += f", then to {size} x {size} (bilinear, antialiased)"
    notes.append(f"To prepare an image: turn it upright (EXIF), make it RGB, {steps}.")
    if format != "safetensors":
        notes.append(f"Input: uint8 values 0 to 255, `[n, 3, {size}, {size}]`, not normalised.")
    if format == "torch-export":
        notes.append("torch.export.load can execute code: load only files whose origin you trust.")
    return notes
