"""Export a model with its description and card, and check that its logits stay the same."""

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peerdg import __version__
from peerdg.errors import OutputError
from peerdg.export import SUFFIXES, Format, require_packages
from peerdg.export.hub import hub_card, hub_config
from peerdg.export.writers import Origin, Run, origin_of, write_onnx, write_program, write_weights
from peerdg.files import TEMPORARY, require_replaceable, writing
from peerdg.models.classifier import Classifier, in_eval_mode
from peerdg.models.stored import WEIGHTS
from peerdg.run.model import CARD, model_card

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Exported:
    """The result of an export."""

    path: Path  # model file
    files: tuple[Path, ...]  # model file, its description as JSON, and its card
    difference: float  # largest difference between its logits and the original's


def export_model(
    model: Classifier,
    description: Mapping[str, Any],
    output: Path,
    *,
    format: Format,
    overwrite: bool = False,
) -> Exported:
    """Write `model` in `format`, and compare the logits. Nothing is written if they differ.

    `output` is a file if it has the suffix of the format, otherwise a new or empty folder.
    `description` is the content of `model.json`.
    """
    require_packages(format)
    files = _files(output, format, overwrite)
    backbone, size = description["backbone"], description["image_size"]
    is_weights = format in ("safetensors", "hub")
    origin = origin_of(model, backbone) if is_weights else Origin()
    about = _about(model, description, format, origin)
    with in_eval_mode(model), writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=TEMPORARY) as temporary:
            path, about_file, card_file = (Path(temporary) / file.name for file in files)
            if is_weights:
                run = write_weights(model, path, backbone=backbone, origin=origin)
            else:
                write = write_onnx if format == "onnx" else write_program
                run = write(model, path, size=size, about=about)
            difference = require_same_answers(model, run, size=size)
            card = model_card(description, about, file=path.name, difference=difference)
            if format == "hub":
                about, card = hub_config(model, about), hub_card(card, about, description)
            text = json.dumps(about, indent=2, ensure_ascii=False) + "\n"
            about_file.write_text(text, "utf-8")
            card_file.write_text(card, "utf-8")
            files[0].parent.mkdir(exist_ok=True)
            for file in reversed(files):  # the model last: its presence marks a complete export
                os.replace(Path(temporary) / file.name, file)
    return Exported(files[0], files, difference)


def _files(output: Path, format: Format, overwrite: bool) -> tuple[Path, Path, Path]:
    """Choose the files for the model, its description and its card. Refuse to replace files."""
    if output.suffix.lower() != SUFFIXES.get(format):
        if output.is_dir() and any(output.iterdir()):
            raise OutputError(f"{output} is not empty.", hint="Choose a new folder with -o.")
        if format == "hub":
            return output / WEIGHTS, output / "config.json", output / "README.md"
        name = "weights" if format == "safetensors" else "model"
        return output / f"{name}{SUFFIXES[format]}", output / "about.json", output / CARD
    if output.exists() and not overwrite:
        raise OutputError(f"{output} already exists.", hint="Add --overwrite, or change -o.")
    others = (output.with_suffix(".json"), output.with_suffix(f".{CARD}"))
    for file in (output, *others):
        require_replaceable(file)
    return output, *others


@torch.no_grad()
def require_same_answers(model: Classifier, exported: Run, *, size: int) -> float:
    """Return the largest difference between the logits of `model` and the exported model.

    It is relative to the largest logit if that exceeds 1, because rounding errors scale with it.
    An `OutputError` is raised if it exceeds `TOLERANCE` or the shapes differ.
    """
    worst = 0.0
    for images in sample_images(size):
        expected = model(images.to(model.head.weight.device)).float().cpu()
        logits = exported(images).float().cpu()
        difference = math.inf
        if logits.shape == expected.shape:
            scale = max(1.0, float(expected.abs().max()))
            difference = float((logits - expected).abs().max()) / scale
        if not difference <= TOLERANCE:  # also true for NaN
            raise OutputError(
                f"The exported logits differ from the original by {difference:.2g}, more than "
                f"{TOLERANCE:g}. Nothing was written.",
                hint="Choose another --format, and please report this with the backbone's name.",
            )
        worst = max(worst, difference)
    return worst


def sample_images(size: int) -> Iterator[Tensor]:
    """Yield batches of different sizes: noise, coarse patterns, black and white."""
    random = torch.Generator().manual_seed(0)
    for batch in (1, 5):  # the exported batch size must be dynamic
        coarse = torch.randint(0, 256, (batch, 3, 4, 4), generator=random).float()
        smooth = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
        noise = torch.randint(0, 256, (batch, 3, size, size), generator=random).float()
        images = torch.where(torch.arange(batch).view(-1, 1, 1, 1) % 2 == 0, smooth, noise)
        if batch > 3:
            images[2], images[3] = 0.0, 255.0
        yield images.round().clamp(0, 255).to(torch.uint8)


def _about(
    model: Classifier, description: Mapping[str, Any], format: Format, origin: Origin
) -> dict[str, Any]:
    """Describe the exported file for programs that use it."""
    size, inside = description["image_size"], origin.library == "peerdg"
    shape = f"RGB [batch, 3, {size}, {size}]"
    about = {
        "format": format,
        "backbone": description["backbone"],
        "classes": list(model.classes),
        "image_size": size,
        "stored_size": description["stored_size"],
        "mean": model.mean.flatten().tolist(),
        "std": model.std.flatten().tolist(),
        "normalization": "inside the model" if inside else "to be done before",
        "input": f"uint8 {shape}" if inside else f"float {shape}, (value / 255 - mean) / std",
        "output": "logits [batch, classes]",
        "weights_sha256": description.get("weights_sha256", "unknown"),
        "peerdg": __version__,
    }
    about |= {key: description[key] for key in ("added_layers", "combined") if description.get(key)}
    if format in ("safetensors", "hub"):
        about |= {"library": origin.library, "network": list(origin.code)}
    return about
