"""The formats a model can be exported to. Free of torch, so the command line can list them."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, get_args

from peerdg.errors import ConfigError

Format = Literal["onnx", "torch-export", "safetensors"]
FORMATS: tuple[Format, ...] = get_args(Format)


@dataclass(frozen=True)
class FormatFacts:
    """What a format needs.

    Args:
        suffix: How its files end.
        needs: Packages that must be there.
        extra: The extra of peerdg that brings them.
    """

    suffix: str
    needs: tuple[str, ...] = ()
    extra: str | None = None


FACTS: dict[Format, FormatFacts] = {
    "onnx": FormatFacts(".onnx", ("onnx", "onnxscript", "onnxruntime"), "onnx"),
    "torch-export": FormatFacts(".pt2"),
    "safetensors": FormatFacts(".safetensors"),
}


def require_packages(format: Format) -> None:
    """Refuse a format whose packages are not installed.

    Raises:
        ConfigError: With what to install.
    """
    facts = FACTS[format]
    missing = [name for name in facts.needs if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"The format '{format}' needs {', '.join(missing)}.",
            hint=f"Install the extra: pip install 'peerdg[{facts.extra}]'.",
        )
