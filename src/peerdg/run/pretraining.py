"""Share pre-training between runs that would compute the same weights.

Runs in a bench often have the same images, network, initial weights, seed and pre-training options.
The first one stores its weights and records in the cache folder. The others load them, with bitwise
the same results as if they had pre-trained themselves. An entry is a folder `pretraining/NAME-HASH`
in checkpoint format.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from peerdg import __version__
from peerdg.data.cache import cache_folder
from peerdg.distributed import size
from peerdg.errors import DamagedError, OutputError, PeerdgWarning
from peerdg.files import reading
from peerdg.models.classifier import Classifier, network_fingerprint
from peerdg.models.names import OWN
from peerdg.options import to_dict
from peerdg.run.checkpoint import load_checkpoint, write_checkpoint
from peerdg.run.config import RunConfig
from peerdg.run.folder import RunFolder
from peerdg.run.manifest import code_digest, hardware_of
from peerdg.train.settings import Phase
from peerdg.train.signals import StopRequest
from peerdg.train.source import Source

FOLDER = "pretraining"
SWITCH = "PEERDG_SHARE_PRETRAINING"  # environment variable. "0" means --no-share-pretraining


def shared_entry(
    config: RunConfig, phase: Phase, network: Classifier, source: Source, run: RunFolder
) -> Path | None:
    """Return the cache entry for the pre-training of a run, or None if it must not be shared.

    The name includes a hash of everything that can change the weights: options, data, network,
    versions, hardware and peerdg's code. The user's own networks are not shared, because networks
    with equal layers and weights may have different forward passes.
    """
    folder, manifest = cache_folder(), run.manifest
    is_off = not config.share_pretraining or os.environ.get(SWITCH) == "0" or size() > 1
    if is_off or folder is None or manifest is None or manifest.network or config.backbone == OWN:
        return None
    device = source.device
    key = {
        "peerdg": [__version__, code_digest()],
        "torch": torch.__version__,
        "hardware": hardware_of(device),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "matmul": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "data": manifest.data["train"],
        "network": network_fingerprint(network),
        "seed": config.seed,
        "pretrain": to_dict(phase.settings, unset=True),
        "transform": to_dict(config.transform, unset=True),
        "size": source.size,
        "bf16": phase.bf16,
        "compile": config.compile,
    }
    text = json.dumps(key, sort_keys=True)
    name = config.backbone.replace(":", "-").replace("/", "-")
    return folder / FOLDER / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def pretrain(
    train: Callable[[], None],
    entry: Path,
    network: Classifier,
    run: RunFolder,
    *,
    note: Callable[[str], None],
    stop: StopRequest,
) -> None:
    """Load the stored pre-training, or train and store it. Identical runs wait for the first.

    `train` trains `network` and writes the records of `run`. `stop` ends the wait.
    """
    lock = FileLock(entry.with_name(f"{entry.name}.lock"))
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            note("Waiting for a run with the same pre-training (or use --no-share-pretraining).")
            lock.acquire(cancel_check=lambda: bool(stop))
    except (OSError, NotImplementedError) as error:
        if not stop:  # A stop ends the wait, and `train` then stops at its first step.
            _warn_not_shared(error)
        train()
        return
    try:
        if _load(entry, network, run):
            note("Reusing the pre-training of an identical run (or use --no-share-pretraining).")
        else:
            train()
            _store(entry, network, run)
    finally:
        lock.release()


def _load(entry: Path, network: Classifier, run: RunFolder) -> bool:
    """Load the stored weights into `network` and the stored records into `run`, if they exist."""
    if not entry.exists():
        return False
    tensors = _tensors(network)
    try:
        with reading(entry):
            stored = load_checkpoint(entry)
            values = {name: stored.tensors[name] for name in tensors}
            metrics, events = stored.state["metrics"], stored.state["events"]
    except DamagedError as error:
        message = f"A shared pre-training is damaged and will be repeated: {error.message}"
        warnings.warn(message, PeerdgWarning, stacklevel=2)
        run.event("damaged", message=message)
        return False
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(values[name])
    network.train()  # the mode that training ends in
    run.metrics.append(*metrics)
    for event in events:
        run.event("epoch", **event)
    run.event("shared_pretraining", entry=entry.name)
    return True


def _store(entry: Path, network: Classifier, run: RunFolder) -> None:
    """Store the weights of `network` and the pre-training records of `run` for other runs."""
    # Key by epoch: a run killed before its first checkpoint records some epochs twice.
    events = {
        event["epoch"]: {name: event[name] for name in event.keys() - {"event", "time"}}
        for event in run.events.read()
        if event["event"] == "epoch" and event["phase"] == "pretrain"
    }
    metrics = [record for record in run.metrics.read() if record["phase"] == "pretrain"]
    records = {"metrics": metrics, "events": list(events.values())}
    try:
        write_checkpoint(entry, _tensors(network), records)
    except OutputError as error:
        _warn_not_shared(error)


def shared_pretrainings(cache: Path) -> list[Path]:
    """List the entries in a cache folder, newest first."""
    entries = [path for path in (cache / FOLDER).glob("[!.]*") if path.is_dir()]
    return sorted(entries, key=lambda path: -path.stat().st_mtime)


def _tensors(network: Classifier) -> dict[str, Tensor]:
    """Return all parameters and buffers, including those not in the state dict."""
    return dict(chain(network.named_parameters(), network.named_buffers()))


def _warn_not_shared(error: Exception) -> None:
    message = f"Pre-training is not shared with other runs: {getattr(error, 'message', error)}"
    warnings.warn(message, PeerdgWarning, stacklevel=3)
