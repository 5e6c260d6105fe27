"""Send the records of a run to TensorBoard or Weights & Biases."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from peerdg.errors import ConfigError


class Logger(Protocol):
    """A place for numbers by epoch."""

    def log(self, numbers: Mapping[str, float], epoch: int) -> None: ...

    def close(self) -> None: ...


def open_logger(name: str, folder: Path, config: Mapping[str, Any]) -> Logger:
    """Open a logger for the run in `folder`. Raise an error if its package is missing."""
    try:
        return TensorBoard(folder) if name == "tensorboard" else WeightsAndBiases(folder, config)
    except ImportError as error:
        raise ConfigError(
            f"--logger {name} needs the package {name}.", hint=f"pip install {name}"
        ) from error


class TensorBoard:
    """Write event files to `tensorboard/` in the run folder."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(folder / "tensorboard")

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, epoch)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """Log to the project `peerdg`, under the name of the run folder."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        wandb = importlib.import_module("wandb")
        self._run = wandb.init(
            project="peerdg", name=folder.name, dir=folder, config=dict(config), resume="allow"
        )

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        self._run.log({"epoch": epoch, **numbers})

    def close(self) -> None:
        self._run.finish()


def numbers_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Name the numbers of an epoch `train/loss`, and an accuracy `svhn/task`."""
    if record["kind"] == "evaluation":
        return {f"{record['domain']}/{record['model']}": record["accuracy"]}
    return {
        f"{record['phase']}/{name}": value
        for name, value in record.items()
        if name != "epoch" and type(value) in (int, float)
    }
