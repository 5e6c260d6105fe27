"""Write the inputs of a run to `manifest.json` at its start, and compare them on resume.

`files.json` next to it has a hash of every image, to name changed files and to detect training
images in an evaluation. `peerdg runs` reads manifests, so torch is imported inside the functions.
"""

import contextlib
import hashlib
import platform
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peerdg import __version__
from peerdg.data import VALIDATION
from peerdg.errors import ConfigError, DamagedError, DataError, PeerdgWarning
from peerdg.files import read_json, reading, write_json
from peerdg.run.config import RunConfig, changed_options
from peerdg.terminal import command, storable, visible

if TYPE_CHECKING:
    import torch

    from peerdg.data.domain import Domain
    from peerdg.data.splits import Splits
    from peerdg.evaluate.accuracy import Overlap
    from peerdg.run.folder import RunFolder

FORMAT = 1
_HINT = "Restore it, or start again with --overwrite."


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Inputs of a run."""

    network: str | None = None  # fingerprint of the user's own network architecture
    network_weights: str | None = None  # fingerprint of the user's initial weights
    weights_sha256: str | None = None  # SHA-256 of the initial weights file
    trained: str | None = None  # name of the trained network, None before the main phase
    deployed: str | None = None  # name of the deployed network, None before the main phase
    models: dict[str, str] = field(default_factory=dict)  # SHA-256 of input models, by option
    oracle: bool = False  # whether the run, or one of its input models, is trained on targets
    images: dict[str, int] = field(default_factory=dict)  # number of images in each part
    software: tuple[str, ...] = ()  # versions that the run was started and resumed with
    config: dict[str, Any]  # all options, None for unset ones
    data: dict[str, str]  # fingerprint of each part of the data
    torch: str
    hardware: dict[str, Any]  # device, number of CPU threads and instruction set
    added_layers: list[dict[str, Any]] = field(default_factory=list)  # layers added by the method
    config_hash: str = ""
    command: tuple[str, ...] = ()
    skipped: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # unreadable images
    peerdg: str = __version__
    python: str = field(default_factory=platform.python_version)
    platform: str = field(default_factory=platform.platform)
    format: int = FORMAT


def read_manifest(path: Path) -> Manifest:
    """Read a `manifest.json`. Raise `DamagedError` if it is unreadable or has another format."""
    with reading(path, hint=_HINT):
        values = read_json(path, format=FORMAT, hint=_HINT)
        return Manifest(**values | {"software": tuple(values["software"])})


def refuse_edited_config(manifest: Manifest, config: RunConfig, *, file: Path) -> None:
    """Refuse to resume a run if its `config.toml`, parsed as `config`, was edited."""
    if changes := changed_options(manifest.config, config.tables(unset=True)):
        raise ConfigError(
            f"{file} was changed after the run was started:\n  {changes}",
            hint=f"Undo the change, or {_start_again(file)}",
        )


def check_manifest(
    config: RunConfig,
    run: "RunFolder",
    splits: "Splits",
    device: "torch.device",
    inputs: Mapping[str, Any],
) -> None:
    """Write the manifest of a new run, or compare a resumed run with its manifest.

    If the data has changed, the run restarts if opened with `"renew"`, else it is refused.
    `inputs` are `Manifest` fields for files and networks that the config refers to by name.
    """
    now = _manifest(config, splits, device, inputs)
    refuse_changed_data(run, splits)
    before = run.manifest
    if before is None:
        _write_files(run, splits)
        run.write_manifest(now)
        return
    _refuse_other_inputs(run, before, now)
    old_hardware = {"processes": 1, **before.hardware}
    pairs: dict[str, tuple[Any, Any]] = {"torch": (before.torch, now.torch)}
    pairs |= {name: (old_hardware.get(name), value) for name, value in now.hardware.items()}
    for name, (old, new) in pairs.items():
        if old != new:
            message = (
                f"The run was started with {name} {visible(str(old))} and continues with {new}. "
                "Its result will not be bitwise identical to an uninterrupted run."
            )
            warnings.warn(message, PeerdgWarning, stacklevel=3)
            run.event("other_version", message=message)
    if now.software[0] not in before.software:
        run.update_manifest(software=(*before.software, *now.software))


def refuse_changed_data(run: "RunFolder", splits: "Splits") -> None:
    """Refuse to resume a run with changed data, or restart it if opened with `"renew"`."""
    from peerdg.data.splits import describe_changes, file_hashes

    before, now = {} if run.manifest is None else run.manifest.data, splits.fingerprint
    parts = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    if not before or not parts:
        return
    lines = [f"The data has changed since {run.path} was started: {', '.join(parts)}."]
    with contextlib.suppress(DamagedError):  # if unreadable, name only the changed parts
        files = read_json(run.files_file, format=FORMAT)["files"]
        lines += describe_changes(files, file_hashes(splits))
    message = "\n  ".join(lines)
    if not run.renew():
        raise DataError(
            message,
            hint="Restore the data, start a new run in another --out folder, or restart this one "
            "with --accept-new-data.",
        )
    warnings.warn(f"{message}\n  The run starts over.", PeerdgWarning, stacklevel=3)


def hardware_of(device: "torch.device") -> dict[str, Any]:
    """Describe the hardware, which can affect the last bits of a result."""
    import torch

    from peerdg.distributed import size

    cpu = torch.backends.cpu.get_cpu_capability()
    threads = torch.get_num_threads()
    known = {"device": device.type, "threads": threads, "instruction set": cpu}
    return {**known, "processes": size()}


def _manifest(
    config: RunConfig, splits: "Splits", device: "torch.device", inputs: Mapping[str, Any]
) -> Manifest:
    import torch

    validation = {} if splits.validation is None else {VALIDATION: splits.validation}
    parts = {**splits.targets, **validation, "train": splits.train}
    return Manifest(
        command=tuple(storable(argument) for argument in sys.argv),
        config=config.tables(unset=True),
        config_hash=config.hash,
        data=splits.fingerprint,
        images={name: len(domain) for name, domain in parts.items()},
        skipped={n: [bad._asdict() for bad in d.skipped] for n, d in parts.items() if d.skipped},
        torch=torch.__version__,
        hardware=hardware_of(device),
        software=(f"peerdg {__version__} (code {code_digest()}), torch {torch.__version__}",),
        **inputs,
    )


def _refuse_other_inputs(run: "RunFolder", before: Manifest, now: Manifest) -> None:
    pairs: dict[str, tuple[Any, Any]] = {
        "the network": (before.network, now.network),
        "the initial weights file": (before.weights_sha256, now.weights_sha256),
        "the layers added by the method": (before.added_layers, now.added_layers),
    }
    for option in sorted({*before.models, *now.models}):
        pairs[f"the model for {option}"] = (before.models.get(option), now.models.get(option))
    changes = [name for name, (old, new) in pairs.items() if old != new]
    if changes:
        raise ConfigError(
            f"The inputs of {run.path} have changed: {', '.join(changes)}.",
            hint=f"Restore them, or {_start_again(run.config_file)}",
        )


def _start_again(config_file: Path) -> str:
    words = ("train", "--config", config_file, "--out", config_file.parent, "--overwrite")
    return f"start again: {command(*words)}"


def _write_files(run: "RunFolder", splits: "Splits") -> None:
    from peerdg.data.splits import file_hashes

    known = {name: part for name, part in splits.parts.items() if name in ("train", VALIDATION)}
    pixels = {name: sorted(set(domain.pixel_hashes)) for name, domain in known.items()}
    write_json(run.files_file, {"format": FORMAT, "files": file_hashes(splits), "pixels": pixels})


def count_known_images(folder: Path, domain: "Domain") -> "Overlap | None":
    """Count how many images of `domain` a run used for training or validation.

    `folder` is the run folder or its model folder. The result is None if it does not
    belong to a run.
    """
    from peerdg.evaluate.accuracy import Overlap

    path = (folder.parent if folder.name == "model" else folder) / "files.json"
    if not path.exists():
        return None
    with reading(path):
        pixels = read_json(path, format=FORMAT)["pixels"]
        train, hashes = set(pixels["train"]), domain.pixel_hashes
        validation = set(pixels.get(VALIDATION, ())) - train
    return Overlap(
        trained=sum(image in train for image in hashes),
        validated=sum(image in validation for image in hashes),
        n=len(domain),
    )


@cache
def code_digest() -> str:
    """Hash the source code, because the version number only changes with a release."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(filter(Path.is_file, root.rglob("*.py"))):  # skips dangling editor locks
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
