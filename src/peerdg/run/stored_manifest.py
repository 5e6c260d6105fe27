"""Read back what `manifest.json` says a run was started with, and compare it with its config.

Free of torch, like the run folder: a changed config is refused before anything heavy is imported.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peerdg.errors import ConfigError, DamagedError
from peerdg.models.added import AddedLayer
from peerdg.options import difference, dotted, to_dict
from peerdg.run.config import MAY_CHANGE, RunConfig, hash_of
from peerdg.schema import read_stored, within
from peerdg.terminal import visible

_IN_EVERY_CONFIG = {"benchmark", "method", "seed", "train"}
_HINT = "Restore it, or start anew with --overwrite."


@dataclass(frozen=True)
class Hardware:
    """What the last bits of a result depend on, besides versions and options.

    Args:
        device: Type of the device.
        threads: CPU threads of torch.
        cpu: The instruction set that torch uses on the CPU, e.g. `"AVX512"`.
    """

    device: str
    threads: int
    cpu: str

    def changes(self, now: "Hardware") -> str:
        """What differs between this and `now`, in words; empty if nothing does."""
        names = {"device": "device", "threads": "threads", "cpu": "instruction set"}
        return ", ".join(
            f"{name}: {visible(str(getattr(self, key)))} -> {getattr(now, key)}"
            for key, name in names.items()
            if getattr(self, key) != getattr(now, key)
        )


@dataclass(frozen=True)
class StoredManifest:
    """What is read back of `manifest.json`; it holds more, for people.

    Args:
        data: The fingerprint of each part of the data.
        torch: The version of torch.
        config_hash: `RunConfig.hash` of the options.
        config: The options, None for those that were not set; manifests of the first version have
            only the hash.
        hardware: Where it was started; manifests of the first version do not have it.
        augmentation: `peerdg.augment.REVISION`; manifests of the first version do not have it.
        added_layers: What the method adds to the network.
        models: SHA-256 of the weights of networks that the method is given, by option.
        software: The versions that the run was started and gone on with; manifests of earlier
            versions do not have it.
    """

    data: dict[str, str]
    torch: str
    config_hash: str
    config: dict[str, Any] | None = None
    hardware: Hardware | None = None
    augmentation: int = 1
    added_layers: tuple[AddedLayer, ...] = ()
    models: dict[str, str] = field(default_factory=dict)
    software: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Fingerprints of inputs that the config refers to by name, from `manifest.json`.

    Args:
        network: What the user's own network is, see `network_fingerprint`; None if there was
            none, or the run is older than the record.
        network_weights: The values it starts from; None likewise.
        weights_sha256: Of the file of initial weights; None likewise.
        augmentation: Revision of the augmentation's operations; None if the manifest is damaged.
        trained: The observed network that learns; None if the run is older than the record, or
            has not come to its main phase.
        deployed: The observed network that ships; None likewise.
        models: SHA-256 of the weights of networks that the method is given, by option.
        oracle: Whether the run, or a network that it is given, learnt from targets.
        images: How many each part of the data has; empty in runs that are older than the record.
        software: The versions that the run was started and gone on with; empty in runs that are
            older than the record.
    """

    network: str | None = None
    network_weights: str | None = None
    weights_sha256: str | None = None
    augmentation: int | None = within(at_least=1, default=1)
    trained: str | None = None
    deployed: str | None = None
    models: dict[str, str] = field(default_factory=dict)
    oracle: bool = False
    images: dict[str, int] = field(default_factory=dict)
    software: tuple[str, ...] = ()


def read_inputs(manifest: Path) -> Inputs:
    """Read the inputs of a run; a damaged manifest leaves them unknown."""
    if not manifest.exists():
        return Inputs()
    try:
        return read_stored(Inputs, manifest, hint=_HINT)
    except DamagedError:
        return Inputs(augmentation=None)


def read_manifest(manifest: Path) -> StoredManifest | None:
    """Read and check a manifest; None if there is none yet.

    Raises:
        DamagedError: If it is damaged, or its options are not those of its hash.
    """
    if not manifest.exists():
        return None
    started = read_stored(StoredManifest, manifest, hint=_HINT)
    if started.config is not None and (
        not started.config.keys() >= _IN_EVERY_CONFIG
        or hash_of(_set_only(started.config)) != started.config_hash
    ):
        raise DamagedError(
            f"{visible(str(manifest))} is damaged: its options are incomplete, or not those of "
            "its hash.",
            hint=_HINT,
        )
    return started


def _set_only(tables: Mapping[str, Any]) -> dict[str, Any]:
    """`tables` without options that are not set, as they are hashed."""
    result = {}
    for key, value in tables.items():
        inner = _set_only(value) if isinstance(value, Mapping) else value
        if inner is not None and inner != {}:
            result[key] = inner
    return result


def run_identity(manifest: Path) -> str | None:
    """Short name of the options, data and network that a run was started with; None without them.

    Runs with the same identity have the same checkpoints.

    Raises:
        DamagedError: If the manifest is damaged.
    """
    started = read_manifest(manifest)
    if started is None:
        return None
    inputs = read_inputs(manifest)
    network: list[Any] = [inputs.network, inputs.network_weights, inputs.weights_sha256]
    network += map(to_dict, started.added_layers)
    if started.models:
        network.append(started.models)
    text = json.dumps([started.config_hash, started.data, network], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def refuse_edited_config(
    started: StoredManifest, stored: Mapping[str, Any], config: RunConfig, *, file: Path
) -> None:
    """Refuse to resume if `config.toml` was edited: half the run would have other options.

    Args:
        started: What the run was started with.
        stored: The tables of `config.toml`.
        config: The complete config they stand for.
        file: Where `config.toml` is.

    Raises:
        ConfigError: With every option that differs, where that was recorded.
    """
    if started.config is None:
        # Over what the file has: options that came later were not part of the hash.
        if started.config_hash in (hash_of(stored), config.hash):
            return
        detail = " The version of peerdg that started it did not record which option was changed."
    else:
        now = config.tables(unset=True)
        known = set(dotted(started.config))
        changes = [
            change
            for change in difference(started.config, now)
            if change.key in known and change.key not in MAY_CHANGE
        ]
        if not changes:
            return
        detail = "".join(f"\n  {change}" for change in changes)
    raise ConfigError(
        f"{file} was changed after the run was started:{detail}",
        hint="Undo that, or start anew with the changed options: "
        f"peerdg train --config {file} --out {file.parent} --overwrite",
    )


def new_options(
    started: StoredManifest, stored: Mapping[str, Any], config: RunConfig
) -> dict[str, Any]:
    """Options that the version of peerdg that started the run did not have, as they are now.

    An option that is not set does nothing, like one that was not there.
    """
    known = set(dotted(stored) if started.config is None else dotted(started.config))
    now = dotted(config.tables())
    return {name: value for name, value in now.items() if name not in known | MAY_CHANGE}
