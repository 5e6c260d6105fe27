"""Export a model: the file, its description and card, and a check that it answers the same."""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peerdg import __version__
from peerdg.errors import OutputError
from peerdg.export.formats import SUFFIXES, Format, require_packages
from peerdg.export.writers import Origin, Run, origin_of, write_onnx, write_program, write_weights
from peerdg.files import TEMPORARY, replace_atomically, require_replaceable, writing
from peerdg.models.classifier import Classifier, in_eval_mode
from peerdg.models.stored import describes_ensemble
from peerdg.run.model import CARD, model_card

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    Args:
        path: The model file.
        files: The model file, its description as JSON, and its card.
        difference: Largest difference of its logits from those of the original.
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
    """Write `model` in `format`, run the written file, and compare.

    Args:
        model: The classifier.
        description: The content of `model.json`: backbone, sizes, how it was trained.
        output: A file, if it ends as files of the format do, else a folder to make.
        format: One of `FORMATS`.
        overwrite: Whether an existing file may be replaced. A folder must be new or empty.

    Raises:
        ConfigError: If the format needs a package that is not installed.
        OutputError: If the place is taken or cannot be written, or the exported model answers
            differently; then nothing is left.
    """
    require_packages(format)
    backbone, size = description["backbone"], description["image_size"]
    origin = origin_of(model, backbone) if format == "safetensors" else Origin("peerdg", None, ())
    about = _about(model, description, format, origin)
    with in_eval_mode(model), _target(output, format, overwrite) as (folder, names):
        path = folder / names[0]
        if format == "safetensors":
            run = write_weights(model, path, backbone=backbone, origin=origin)
        else:
            write = write_onnx if format == "onnx" else write_program
            run = write(model, path, size=size, about=about)
        difference = require_same_answers(model, run, size=size)
        text = json.dumps(about, indent=2, ensure_ascii=False) + "\n"
        (folder / names[1]).write_text(text, "utf-8")
        card = model_card(
            description,
            load=_how_to_load(about, description, names[0], origin),
            remarks=_remarks(about, difference),
            normalizes=origin.library == "peerdg",
        )
        (folder / names[2]).write_text(card, "utf-8")
    where = output.parent if output.suffix.lower() == SUFFIXES[format] else output
    return Exported(where / names[0], tuple(where / name for name in names), difference)


@torch.no_grad()
def require_same_answers(model: Classifier, exported: Run, *, size: int) -> float:
    """Return the largest difference between the logits of `model` and of the exported one.

    It is relative to the largest logit where that exceeds 1, since rounding is.

    Args:
        model: The original, in eval mode.
        exported: Runs the exported file, the way a user will.
        size: Side of the images.

    Raises:
        OutputError: If it is more than `TOLERANCE`, or the shapes differ.
    """
    worst = 0.0
    for images in sample_images(size):
        expected = model(images.to(model.head.weight.device)).float().cpu()
        logits = exported(images).float().cpu()
        if logits.shape != expected.shape:
            raise OutputError(
                f"The exported model gives {tuple(logits.shape)} for {len(images)} images, not "
                f"{tuple(expected.shape)}; nothing was written.",
                hint="Please report this with the backbone's name.",
            )
        scale = max(1.0, float(expected.abs().max()))
        difference = float((logits - expected).abs().max()) / scale
        if not difference <= TOLERANCE:  # also if it is not a number
            raise OutputError(
                f"The exported model differs from the original by {difference:.2g}, more than "
                f"{TOLERANCE:g}; nothing was written.",
                hint="Choose another --format, and please report this with the backbone's name.",
            )
        worst = max(worst, difference)
    return worst


def sample_images(size: int) -> Iterator[Tensor]:
    """Make batches of different lengths: noise, coarse patterns, black and white."""
    random = torch.Generator().manual_seed(0)
    for batch in (1, 5):  # the number of images must be free
        coarse = torch.randint(0, 256, (batch, 3, 4, 4), generator=random).float()
        smooth = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
        noise = torch.randint(0, 256, (batch, 3, size, size), generator=random).float()
        images = torch.where(torch.arange(batch).view(-1, 1, 1, 1) % 2 == 0, smooth, noise)
        if batch > 3:
            images[2], images[3] = 0.0, 255.0
        yield images.round().clamp(0, 255).to(torch.uint8)


@contextmanager
def _target(
    output: Path, format: Format, overwrite: bool
) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """Make a temporary folder, whose three files take their places when the block ends well."""
    if output.suffix.lower() != SUFFIXES[format]:
        if output.is_dir() and any(output.iterdir()):
            raise OutputError(f"{output} is not empty.", hint="Choose a new folder with -o.")
        stem = "weights" if format == "safetensors" else "model"
        with replace_atomically(output) as folder:
            folder.mkdir()
            yield folder, (f"{stem}{SUFFIXES[format]}", "about.json", CARD)
        return
    if output.exists() and not overwrite:
        raise OutputError(f"{output} is there already.", hint="Add --overwrite, or change -o.")
    names = (output.name, f"{output.stem}.json", f"{output.stem}.{CARD}")
    for name in names:
        require_replaceable(output.with_name(name))
    with writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=TEMPORARY) as temporary:
            yield Path(temporary), names
            for name in reversed(names):  # the model last: once it is there, all is
                os.replace(Path(temporary) / name, output.parent / name)


def _about(
    model: Classifier, description: Mapping[str, Any], format: Format, origin: Origin
) -> dict[str, Any]:
    """Describe the file for a program that uses it."""
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
        "normalisation": "inside the model" if inside else "to be done before",
        "input": f"uint8 {shape}" if inside else f"float {shape}, (value / 255 - mean) / std",
        "output": "logits [batch, classes]",
        "weights_sha256": description.get("weights_sha256", "unknown"),
        "peerdg": __version__,
    }
    about |= {key: description[key] for key in ("added_layers", "combined") if description.get(key)}
    if format == "safetensors":
        about |= {"library": origin.library, "network": list(origin.code)}
    return about


def _how_to_load(
    about: Mapping[str, Any], description: Mapping[str, Any], name: str, origin: Origin
) -> list[str]:
    """Write the lines of Python that load the file."""
    file, images = json.dumps(name), f"uint8 [n, 3, {about['image_size']}, {about['image_size']}]"
    if about["format"] == "onnx":
        return [
            "import onnxruntime",
            f"session = onnxruntime.InferenceSession({file})",
            f'logits = session.run(None, {{"images": images}})[0]  # {images}',
        ]
    if about["format"] == "torch-export":
        return [
            "import torch",
            f"net = torch.export.load({file}).module()",
            f"logits = net(images)  # {images}",
        ]
    load = f"net.load_state_dict(safetensors.torch.load_file({file})); net.eval()"
    if origin.library != "peerdg":
        return [
            f"import torch, {origin.library}, safetensors.torch",
            *origin.code,
            load,
            "logits = net((images / 255 - mean) / std)  # mean and std: in the JSON file beside it",
        ]
    lines = [
        "import peerdg, safetensors.torch",
        f"# net: peerdg.build_classifier({json.dumps(about['backbone'])}, classes=...,",
        f"#     mean={about['mean']}, std={about['std']})",
    ]
    if layers := about.get("added_layers"):
        lines.append(f"net = net.with_layers({layers!r})")
    if describes_ensemble(description):
        combined = description["combined"]
        lines += [
            "import copy",
            "from peerdg.models.ensemble import ensemble",
            f"nets = [copy.deepcopy(net) for _ in range({len(combined['members'])})]",
            f"net = ensemble(nets, outputs={json.dumps(combined['outputs'])})",
        ]
    return [*lines, load]


def _remarks(about: Mapping[str, Any], difference: float) -> list[str]:
    size, stored, format = about["image_size"], about["stored_size"], about["format"]
    steps = f"resize it to {stored} x {stored} with Pillow's bilinear filter"
    if stored != size:
        steps += f", then to {size} x {size} (bilinear, antialiased)"
    notes = [
        f"Exported as {format}. Its logits differ from the original's by {difference:.1e} at most "
        "on sample images.",
        f"To prepare an image: turn it upright (EXIF), make it RGB, {steps}.",
    ]
    if format != "safetensors":
        notes.append(f"Input: uint8 values 0 to 255, `[n, 3, {size}, {size}]`, not normalised.")
    if format == "torch-export":
        notes.append("torch.export.load can execute code: load only files whose origin you trust.")
    return notes
