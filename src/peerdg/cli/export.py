"""`peerdg export`: export a trained model for other programs."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from peerdg.export import Format, require_packages
from peerdg.terminal import console


def export(
    run: Path,
    /,
    *,
    format: Format,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    overwrite: bool = False,
) -> None:
    """Write a run's deployed model as ONNX, torch.export, weights or a Hub folder, with its card.

    The exported model is run on sample images. If its logits differ from the original's by more
    than 0.0001, nothing is written and the command ends with code 4.

    Example: `peerdg export runs/first --format onnx -o model.onnx`

    Args:
        run: Run folder or model folder.
        format: onnx, torch-export (a .pt2 file), safetensors (weights, named as in the library
            that the network comes from), or hub (the same as a folder for the Hugging Face Hub).
        output: File with the suffix of the format (.onnx, .pt2 or .safetensors), or a new folder.
            Default: NAME-FORMAT.
        overwrite: Replace an existing file.
    """
    require_packages(format)
    from peerdg.model import load_model

    output = output or Path(f"{run.resolve().name}-{format}")
    done = load_model(run).export(output, format=format, overwrite=overwrite)
    size = done.path.stat().st_size / 1e6
    for path in done.files:
        console.print(f"{path}")
    difference = f"Its logits differ from the original's by at most {done.difference:.1e}"
    console.print(f"The {done.path.suffix} file is {size:.1f} MB. {difference}.")
