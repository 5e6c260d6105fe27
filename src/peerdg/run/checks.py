"""Checks of a run.

Before it begins: that its parts fit each other, the memory and the disk. After a phase: that the
network learnt something.
"""

import copy
import warnings
from collections.abc import Mapping

import torch
from torch import nn

from peerdg.augment.view import resize
from peerdg.data.domain import Domain
from peerdg.data.splits import Splits
from peerdg.errors import DataError, PeerdgWarning
from peerdg.methods.base import Method
from peerdg.models.classifier import Classifier, in_eval_mode
from peerdg.rng import seeded
from peerdg.run.build import evaluated_domains
from peerdg.run.config import RunConfig
from peerdg.run.folder import RunFolder
from peerdg.run.plan import method_of, phases_of
from peerdg.run.records import NOTHING_LEARNT
from peerdg.terminal import one_line
from peerdg.train.loop import Phase, evaluation_epochs
from peerdg.train.optim import make_optimizers
from peerdg.train.order import steps_per_epoch
from peerdg.train.settings import PhaseSettings
from peerdg.train.source import Source, require_memory

CHECKPOINTS = 3  # two are kept while the next one is written
MODELS = 2  # the one that is there, and the one that takes its place
CONSTANT = 0.98  # part of the loss of constant answers from which on nothing was learnt
FAIR_STEPS = 100  # before which a network may know nothing yet


def check_fit(model: Classifier, splits: Splits, size: int) -> None:
    """Run one image of each domain through the model, before any work is done.

    Raises:
        DataError: If it cannot take it.
    """
    for domain in (splits.train, *evaluated_domains(splits).values()):
        try:
            with torch.inference_mode(), in_eval_mode(model):
                model(resize(domain.images[:1].to(model.head.weight.device), size))
        except RuntimeError as error:
            raise DataError(
                f"The network cannot take the {size} x {size} images of '{domain.name}': "
                f"{one_line(error)}.",
                hint="Change --transform.size, or choose another --backbone.",
            ) from error


def check_batches(config: RunConfig, images: int) -> None:
    """Refuse batches that are larger than the source.

    Raises:
        ConfigError: If so.
    """
    for phase in (config.pretrain, config.train):
        if phase.epochs:
            steps_per_epoch(phase, images)


def warn_if_nothing_was_learnt(run: RunFolder, phase: Phase, source: Source) -> None:
    """Warn after a phase whose network answers every image alike, as one does that has diverged.

    A rate that is too high may kill a network (all of its units are zero) without any number that
    is not finite. The best constant answer, the shares p of the classes, has a cross-entropy of
    H = -sum p log p on the source; the mean over the last epoch, on clean images, is compared with
    that. Phases of one epoch, whose mean is that of their beginning too, are not judged.
    """
    epochs = [r for r in run.metrics.read() if r["kind"] == "epoch" and r["phase"] == phase.name]
    steps = phase.settings.epochs * steps_per_epoch(phase.settings, len(source))
    if len(epochs) < 2 or steps < FAIR_STEPS:
        return
    constant = _label_entropy(source.domain)
    loss = epochs[-1].get("ce_clean")  # not every method has the term
    if not isinstance(loss, float) or loss < CONSTANT * constant:
        return
    name = {"pretrain": "Pre-training", "train": "Training"}[phase.name]
    message = (
        f"{name} has learnt nothing: its loss on clean images, {loss:.2f}, is that of the same "
        f"answer for every image ({constant:.2f}). Lower the learning rate "
        f"(--{phase.name}.lr {phase.settings.lr:g}); if the loss only fell slowly, raise it or "
        "train for more epochs."
    )
    warnings.warn(message, PeerdgWarning, stacklevel=2)
    run.event(NOTHING_LEARNT, phase=phase.name, message=message)


def _label_entropy(domain: Domain) -> float:
    """H = -sum p log p over the shares p of the classes."""
    p = torch.bincount(domain.labels, minlength=len(domain.classes)).double() / len(domain)
    return float(-torch.special.xlogy(p, p).sum())


def space_needed(
    config: RunConfig, network: Classifier, source: Source, domains: Mapping[str, Domain]
) -> int:
    """Bytes on disk: checkpoints of everything that is trained or averaged, images, models.

    Raises:
        ConfigError: If there is no memory for the images that the method adds.
    """
    main = phases_of(config)[-1]
    weights = _bytes_of(network)
    try:
        with seeded(config.main_seed, "init", main.name), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the run's own method gives them
            method = method_of(
                main,
                config,
                copy.deepcopy(network),
                source,
                images=len(source),
                domains=domains,
            )
        weights, state = _bytes_of(method.trained), state_bytes(method, config.train)
    except (RuntimeError, TypeError):  # it cannot be copied: itself, two moments and an average
        state = 4 * weights
    snapshots = len(evaluation_epochs(main)) if config.keep_snapshots else 0
    files = CHECKPOINTS * state + (MODELS + snapshots) * weights
    return files + pool_bytes(config, source)


def state_bytes(method: Method, settings: PhaseSettings) -> int:
    """What a checkpoint holds: networks, averages and the moments of the optimizers."""
    moments = 0
    for optimizer in make_optimizers(method, settings).values():
        for group in optimizer.param_groups:
            slots = 2 if isinstance(optimizer, torch.optim.Adam) else group["momentum"] > 0
            moments += slots * sum(p.nbytes for p in group["params"])
    return _bytes_of(method) + moments


def pool_bytes(config: RunConfig, source: Source) -> int:
    """The most that images added to the training pool take, in memory and on disk.

    Raises:
        ConfigError: If there is no memory for them.
    """
    changes = config.method_settings.pool_changes(len(source), config.train.epochs)
    added = most = 0
    for change in changes:
        most = max(most, added + change.added)  # what is dropped stays in the checkpoint before
        added += change.added - change.dropped
    require_memory(most * source.bytes_per_image)
    return most * source.bytes_per_image


def _bytes_of(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in module.state_dict().values())
