"""Send the records of a run to TensorBoard or Weights & Biases."""

import hashlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from peerdg.errors import ConfigError
from peerdg.terminal import one_line


class Logger(Protocol):
    """A place for numbers by epoch."""

    def log(self, numbers: Mapping[str, float], epoch: int) -> None: ...

    def close(self) -> None: ...


def require_logger(name: str | None) -> None:
    """Raise an error if the package of a logger is missing."""
    if name is not None and importlib.util.find_spec(name) is None:
        raise ConfigError(f"--logger {name} needs the package {name}.", hint=f"pip install {name}")


def open_logger(name: str, folder: Path, config: Mapping[str, Any], *, begun: str) -> Logger:
    """Open a logger for the run in `folder`, which began at the time `begun`."""
    if name == "tensorboard":
        return TensorBoard(folder)
    return WeightsAndBiases(folder, config, begun)


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
    """Log to the project `peerdg`, under the name of the run folder.

    Its files are in `wandb/` where the command was started, because they contain links.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], begun: str) -> None:
        wandb = importlib.import_module("wandb")
        # A resumed run continues the same record, but a repeated one does not.
        key = hashlib.blake2b(f"{folder.resolve()} {begun}".encode(), digest_size=8).hexdigest()
        try:
            self._run = wandb.init(
                project="peerdg", name=folder.name, id=key, config=dict(config), resume="allow"
            )
        except wandb.errors.Error as error:
            raise ConfigError(f"--logger wandb: {one_line(error)}") from error

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
