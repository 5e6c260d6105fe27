"""Export a trained model as ONNX, torch.export, plain weights or a Hugging Face Hub folder.

The formats are defined here so that the command line can list them without importing torch.
"""

from importlib.util import find_spec
from typing import Literal

from peerdg.errors import ConfigError

Format = Literal["onnx", "torch-export", "safetensors", "hub"]
SUFFIXES: dict[Format, str] = {  # of formats that may be a single file
    "onnx": ".onnx",
    "torch-export": ".pt2",
    "safetensors": ".safetensors",
}


def require_packages(format: Format) -> None:
    """Raise an error if packages that the format needs are not installed."""
    needed = ("onnx", "onnxscript", "onnxruntime") if format == "onnx" else ()
    if missing := [name for name in needed if find_spec(name) is None]:
        raise ConfigError(
            f"The format '{format}' needs {', '.join(missing)}.",
            hint="Install the extra: pip install 'peerdg[onnx]'.",
        )
