"""Find the networks and the data of a run."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from peerdg.augment.view import resize
from peerdg.data.domain import Domain
from peerdg.data.read import Progress
from peerdg.data.splits import Splits
from peerdg.errors import ConfigError
from peerdg.methods.clean import CleanImages
from peerdg.models.classifier import Classifier
from peerdg.models.stored import load_stored, load_weights
from peerdg.run.config import resolve, without_method
from peerdg.run.folder import RunFolder, read_run_config
from peerdg.run.hardware import find_device
from peerdg.run.prepare import load_splits, natural_domains
from peerdg.terminal import command

TRAIN = "source (train)"  # name of the clean training images


class AnalyzedRun:
    """The networks and the data of a run.

    Args:
        path: Run folder. A model folder has a deployed network, but no snapshots and no data.
        root: Folder with the data set's files, if it was moved.
        device: Device for the networks.
        model: The network, if the run trained your own. See `load_model`.
        splits: The data, if the run used data in memory.
        progress: Called while image files are read.

    Attributes:
        task: Deployed network.
        epochs: Epochs of the main phase with a snapshot. 0 is the start.
        size: Side of the networks' images in pixels.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        root: str | None = None,
        device: str = "cpu",
        model: nn.Module | None = None,
        splits: Splits | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.folder = RunFolder(Path(path))
        self._root, self._given, self._progress = root, splits, progress
        task, self.description = load_stored(self.folder.path, model)
        self.task = task.to(find_device(device))
        files = self.folder.snapshots.glob("[0-9]*.safetensors")
        self.epochs = tuple(sorted(int(file.stem) for file in files))
        self.size = int(self.description["image_size"])

    def network(self, which: str | int) -> Classifier:
        """Return the network `"task"`, `"init"`, `"last"` (or `"proxy"`), or that of an epoch.

        A snapshot has the batch statistics of its evaluation.
        """
        if which == "task":
            return self.task
        self.require_snapshots()
        last = self.epochs[-1]
        which = {"init": "0", "last": f"{last}", "proxy": f"{last}"}.get(str(which), str(which))
        if which not in map(str, self.epochs):
            raise ConfigError(
                f"{self.folder.path} has no network '{which}'. It has task, init, last and the "
                f"epochs {', '.join(map(str, self.epochs))}.",
                hint="--keep-snapshots keeps an epoch at each evaluation (--evaluate-every).",
            )
        return load_weights(self.task, self.folder.snapshots / f"{int(which):06d}.safetensors")

    def require_snapshots(self, *, at_least: int = 1) -> None:
        """Raise if the run has too few snapshots, and say what can still be analyzed."""
        if len(self.epochs) < at_least:
            task = f"{self.folder.path}@task"
            raise ConfigError(
                f"{self.folder.path} has too few snapshots of its network ({len(self.epochs)}).",
                hint="Train it again with --keep-snapshots. Its deployed model can be analyzed: "
                f"{command('analyze', 'cka', task, '--with', 'OTHER@task')}",
            )

    def spread(self, count: int) -> list[int]:
        """Return at most `count` epochs after the start, evenly spaced, including the last one."""
        self.require_snapshots(at_least=2)
        epochs = self.epochs[1:]
        count = min(count, len(epochs))
        return [epochs[(number + 1) * len(epochs) // count - 1] for number in range(count)]

    @cached_property
    def tables(self) -> dict[str, Any]:
        """Options of the run."""
        return read_run_config(self.folder.path)

    @cached_property
    def splits(self) -> Splits:
        """Data of the run, with labels in the networks' class order."""
        root = {"root": self._root} if self._root else {}
        config = resolve({**without_method(self.tables), **root})
        return load_splits(config, self.task.classes, self._progress, splits=self._given)

    def domains(self, max_images: int | None = None) -> dict[str, Domain]:
        """Return source and target images, at most `max_images` per domain (see `sample`)."""
        domains = {TRAIN: self.splits.train, **natural_domains(self.splits)}
        return {name: domain.sample(max_images) for name, domain in domains.items()}

    def source_images(self, max_images: int) -> Tensor:
        """Return clean training images in the size of the networks."""
        return resize(self.splits.train.sample(max_images).images, self.size)

    @property
    def clean(self) -> CleanImages | None:
        """Images for batch statistics. None if training kept the statistics fixed."""
        if self.description["training"].get("batch_statistics") == "frozen":
            return None
        return CleanImages(self.splits.train.images, self.size)


def split_name(name: str) -> tuple[str, str | None]:
    """Split `RUN@WHICH` into a run folder and the name of a network, if there is one."""
    run, at, which = name.rpartition("@")
    return (run, which) if at and not Path(name).exists() else (name, None)


def require_alike(networks: Sequence[Classifier]) -> None:
    """Raise unless all networks have the same classes and the same layers."""
    shapes = [{name: t.shape for name, t in each.state_dict().items()} for each in networks]
    for network, theirs in zip(networks, shapes, strict=True):
        if network.classes != networks[0].classes:
            raise ConfigError(
                f"The networks have different classes: {', '.join(networks[0].classes)}, and "
                f"{', '.join(network.classes)}.",
                hint="Compare runs that were trained on the same classes.",
            )
        if theirs != shapes[0]:
            names = (n for n in {**shapes[0], **theirs} if shapes[0].get(n) != theirs.get(n))
            raise ConfigError(
                f"The networks have different layers: '{next(names)}' does not match.",
                hint="Compare runs with the same --backbone and the same added layers.",
            )
