"""The formats a model can be exported to. Free of torch, so the command line can list them."""

from importlib.util import find_spec
from typing import Literal, get_args

from peerdg.errors import ConfigError

Format = Literal["onnx", "torch-export", "safetensors"]
FORMATS: tuple[Format, ...] = get_args(Format)
SUFFIXES: dict[Format, str] = {
    "onnx": ".onnx",
    "torch-export": ".pt2",
    "safetensors": ".safetensors",
}


def require_packages(format: Format) -> None:
    """Refuse a format whose packages are not installed.

    Raises:
        ConfigError: With what to install.
    """
    needed = ("onnx", "onnxscript", "onnxruntime") if format == "onnx" else ()
    if missing := [name for name in needed if find_spec(name) is None]:
        raise ConfigError(
            f"The format '{format}' needs {', '.join(missing)}.",
            hint="Install the extra: pip install 'peerdg[onnx]'.",
        )
