"""Write `manifest.json` and `files.json`, or check that a resumed run still agrees with them."""

import platform
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from peerdg.augment import REVISION, is_same_augmentation
from peerdg.data import VALIDATION
from peerdg.data.splits import FileHashes, Splits, describe_changes, file_hashes
from peerdg.errors import ConfigError, DamagedError, PeerdgWarning
from peerdg.files import write_json
from peerdg.models.added import AddedLayer
from peerdg.options import read_toml, to_dict
from peerdg.run.config import RunConfig
from peerdg.run.folder import RunFolder
from peerdg.run.known_images import read_known_images, write_known_images
from peerdg.run.stored_manifest import Hardware, StoredManifest, new_options, read_manifest
from peerdg.schema import conform, read_json
from peerdg.terminal import storable, visible
from peerdg.version import __version__, code_digest

# Of what was imported, whatever is edited while it works.
SOFTWARE = f"peerdg {__version__} (code {code_digest()}), torch {torch.__version__}"


def check_manifest(
    config: RunConfig,
    run: RunFolder,
    splits: Splits,
    device: torch.device | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> None:
    """Write the manifest, or compare data, versions and hardware with the one that is there.

    If the data is not what the run was started with, it starts anew where that was allowed.

    Args:
        config: The run's options.
        run: Its folder.
        splits: Its data.
        device: Where it is trained; None if nothing is to be trained.
        inputs: Fingerprints of what the config only names, see `Inputs`.

    Raises:
        ConfigError: If the data changed and that was not allowed; it names the files.
        DamagedError: If the manifest or a record of the images cannot be read.
    """
    hardware = None if device is None else hardware_of(device)
    started = read_manifest(run.manifest_file)
    if started is None:
        _write_manifest(config, run, splits, hardware, inputs or {})
        return
    if changes := _changes(started.data, run, splits):
        if not run.renew():
            raise ConfigError(
                changes,
                hint="Restore the data, or start a new run: another --out folder, or in this one "
                "with --accept-new-data.",
            )
        warnings.warn(f"{changes}\n  The run starts anew.", PeerdgWarning, stacklevel=3)
        _write_manifest(config, run, splits, hardware, inputs or {})
        return
    read_known_images(run.path)  # only the check: a later evaluation needs both files
    if started.hardware is None and not run.checkpoints.exists():  # renewed a moment ago
        _write_manifest(config, run, splits, hardware, inputs or {})
    elif hardware is not None:
        _record_software(run, started)
        for message in _differences(config, run, started, hardware):
            warnings.warn(message, PeerdgWarning, stacklevel=3)
            run.event("other_version", message=message)


def require_same_data(other: RunFolder, splits: Splits) -> None:
    """Refuse data that is not what another run, which this one is to be compared with, had.

    A damaged manifest of the other run is not this one's failure: its data counts as unknown.

    Raises:
        ConfigError: If it is not; it names the files.
    """
    try:
        started = read_manifest(other.manifest_file)
    except DamagedError:
        return
    if started is None:
        return
    if changes := _changes(started.data, other, splits, since=f"{other.path} was started"):
        raise ConfigError(changes, hint="Restore the data, or start anew with --overwrite.")


def require_fingerprints(recorded: Mapping[str, str], splits: Splits) -> None:
    """Refuse data that is not what recorded runs, which this one is to be compared with, had.

    Raises:
        ConfigError: If it is not; it names the parts.
    """
    if changed := _changed_parts(recorded, splits):
        raise ConfigError(
            f"The records are of runs on other data: {', '.join(changed)}.",
            hint="Give the data that they were trained on, or leave the records out.",
        )


def record_roles(run: RunFolder, *, trained: str, deployed: str) -> None:
    """Add to the manifest which observed network learns, and which one ships.

    Only the method knows it, and it is built after the manifest was written.
    """
    manifest = read_json(run.manifest_file)
    roles = {"trained": trained, "deployed": deployed}
    if not manifest.items() >= roles.items():  # a resumed run has them
        write_json(run.manifest_file, {**manifest, **roles})


def _record_software(run: RunFolder, started: StoredManifest) -> None:
    """Add to the manifest what a run goes on with, if it is not what it was started with."""
    if SOFTWARE not in started.software:
        before = started.software or (f"earlier code, torch {started.torch}",)
        manifest = read_json(run.manifest_file)
        write_json(run.manifest_file, {**manifest, "software": [*before, SOFTWARE]})


def hardware_of(device: torch.device) -> Hardware:
    """What is recorded about the machine."""
    cpu = torch.backends.cpu.get_cpu_capability()
    return Hardware(device=device.type, threads=torch.get_num_threads(), cpu=cpu)


def _differences(
    config: RunConfig, run: RunFolder, started: StoredManifest, hardware: Hardware
) -> list[str]:
    """What keeps the run from ending as if it had not been interrupted, in sentences."""
    found = []
    goes_on = "it goes on, but not bit for bit as if it had not been interrupted."
    if started.torch != torch.__version__:
        found.append(
            f"The run was started with torch {visible(started.torch)}, this is "
            f"{torch.__version__}: {goes_on}"
        )
    if started.hardware is not None and (changes := started.hardware.changes(hardware)):
        found.append(f"The run was started on other hardware ({changes}): {goes_on}")
    if added := new_options(started, read_toml(run.config_file), config):
        values = ", ".join(f"{name} = {value}" for name, value in added.items())
        found.append(f"The run was started by a peerdg without these options: {values}.")
    return found


def require_batch_statistics(run: RunFolder) -> None:
    """Refuse to go on with a run of a batch-normalised network that was started without a rule.

    Its networks were evaluated as training left them, but a deployed average with statistics of
    clean images in the order of storage; what is to come would not go together with that.

    Raises:
        ConfigError: If the option `batch_statistics` is younger than the run.
    """
    started = read_manifest(run.manifest_file)
    known = started and started.config
    if "batch_statistics" not in (known or read_toml(run.config_file)):
        raise ConfigError(
            f"{run.path} was started by a peerdg that evaluated networks with batch normalisation "
            "in another way, so its first accuracies would not be comparable to its last.",
            hint="Start it anew: peerdg train --config "
            f"{run.config_file} --out {run.path} --overwrite",
        )


def require_same_augmentation(config: RunConfig, run: RunFolder) -> None:
    """Refuse to go on with a run whose augmentation has got another meaning since.

    Raises:
        ConfigError: If the run augments images, and a revision changed its set of operations or
            its kind of augmentation.
    """
    started = read_manifest(run.manifest_file)
    if started is None or not config.augments:
        return
    augment = config.augment
    if not is_same_augmentation(augment.definition, started.augmentation):
        whose = f"augmentation '{augment.kind}' changes"
        if augment.operations is not None:
            whose = f"operations '{augment.operations}' change"
        raise ConfigError(
            f"{run.path} was started by a peerdg whose {whose} images in another way "
            f"(revision {started.augmentation} of the augmentation, this is {REVISION}), so its "
            "last epochs would be of another method than its first.",
            hint="Start it anew: peerdg train --config "
            f"{run.config_file} --out {run.path} --overwrite",
        )


def added_record(layers: Sequence[AddedLayer]) -> dict[str, Any]:
    """What the manifest keeps of layers that a method adds; nothing if there are none."""
    return {"added_layers": [to_dict(layer) for layer in layers]} if layers else {}


def require_same_layers(run: RunFolder, layers: Sequence[AddedLayer]) -> None:
    """Refuse to go on with a run whose network had other layers added to it.

    Raises:
        ConfigError: If this version of the method changes the network in another way.
    """
    started = read_manifest(run.manifest_file)
    if started is not None and started.added_layers != tuple(layers):
        raise ConfigError(
            f"{run.path} was started with other layers added to its network:\n"
            f"  then {_named(started.added_layers)}\n  now {_named(layers)}",
            hint="Start it anew: peerdg train --config "
            f"{run.config_file} --out {run.path} --overwrite",
        )


def _named(layers: Sequence[AddedLayer]) -> str:
    names = [
        f"{layer.kind} {layer.inputs} -> {layer.outputs}" + (f" {layer.place}" * layer.is_inside)
        for layer in layers
    ]
    return ", ".join(names) or "none"


def _write_manifest(
    config: RunConfig,
    run: RunFolder,
    splits: Splits,
    hardware: Hardware | None,
    inputs: Mapping[str, Any],
) -> None:
    write_json(run.files_file, file_hashes(splits))
    write_known_images(run, splits)
    about_hardware = {} if hardware is None else {"hardware": asdict(hardware)}
    write_json(run.manifest_file, {**_manifest(config, splits), **inputs, **about_hardware})


def _manifest(config: RunConfig, splits: Splits) -> dict[str, object]:
    validation = {} if splits.validation is None else {VALIDATION: splits.validation}
    parts = {**splits.targets, **validation, "train": splits.train}  # whatever a target is called
    return {
        "command": [storable(argument) for argument in sys.argv],
        "config_hash": config.hash,
        "config": config.tables(unset=True),
        "seed": config.seed,
        "data": splits.fingerprint,
        "augmentation": REVISION,
        "images": {name: len(domain) for name, domain in parts.items()},
        "skipped": {
            name: [bad._asdict() for bad in d.skipped] for name, d in parts.items() if d.skipped
        },
        "peerdg": __version__,
        "torch": torch.__version__,
        "software": [SOFTWARE],
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def _changed_parts(old: Mapping[str, str], splits: Splits) -> list[str]:
    """List the parts of the data whose fingerprints differ."""
    new = splits.fingerprint
    return sorted(name for name in {*old, *new} if old.get(name) != new.get(name))


def _changes(
    old: Mapping[str, str], run: RunFolder, splits: Splits, *, since: str = "the run was started"
) -> str:
    """Which parts of the data changed, and the files where they are known; empty if none did."""
    changed = _changed_parts(old, splits)
    if not changed:
        return ""
    try:
        before = conform(FileHashes, read_json(run.files_file), run.files_file)
        files = describe_changes(before, file_hashes(splits))
    except DamagedError:  # then the parts are all that can be named
        files = []
    message = f"The data has changed since {since}: {', '.join(changed)}."
    return message + "".join(f"\n  {line}" for line in files)
