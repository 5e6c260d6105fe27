"""Put one run together: data, model, method, loop, evaluation, run folder."""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from peerdg.data.benchmarks import benchmark
from peerdg.data.classes import parse_class_map
from peerdg.data.domain import Domain
from peerdg.data.progress import showing
from peerdg.data.splits import Splits, with_targets
from peerdg.errors import (
    NumericalError,
    PeerdgWarning,
    Stopped,
)
from peerdg.evaluate.accuracy import evaluate_models
from peerdg.files import sha256, write_json
from peerdg.methods.base import Method
from peerdg.methods.clean import CleanImages
from peerdg.models.classifier import Classifier, network_fingerprint
from peerdg.models.names import is_weights_file
from peerdg.models.statistics import clean_statistics, recompute_statistics
from peerdg.models.stored import (
    load_stored,
)
from peerdg.models.weights import weights_file
from peerdg.rng import seeded
from peerdg.run.build import (
    adapt_network,
    data_root,
    evaluated_on,
    load_splits,
    make_network,
    match_classes,
)
from peerdg.run.checkpoint import Checkpointer
from peerdg.run.checks import (
    check_batches,
    check_fit,
    space_needed,
    warn_if_nothing_was_learnt,
)
from peerdg.run.config import RunConfig, notes
from peerdg.run.folder import RunFolder
from peerdg.run.forecast import Costs, RunPlan
from peerdg.run.hardware import find_device, has_bf16, peak_memory
from peerdg.run.input_models import input_models_record
from peerdg.run.manifest import (
    check_manifest,
    refuse_changed_data,
    require_fingerprints,
    require_same_data,
)
from peerdg.run.minutes import TimeBudget
from peerdg.run.model_files import finish, model_writer
from peerdg.run.plan import fit_run, measure_run_costs, method_of, phases_of, run_plan
from peerdg.run.pretraining import pretrain, record_start, shared_pretraining
from peerdg.run.profile import profiled
from peerdg.run.progress import Progress
from peerdg.run.recorder import Recorder
from peerdg.train.loop import Phase, Services, run_phase
from peerdg.train.order import steps_per_epoch
from peerdg.train.signals import StopRequest, stop_on_signals
from peerdg.train.source import Source


def execute(
    config: RunConfig,
    run: RunFolder,
    progress: Progress,
    *,
    splits: Splits | None = None,
    model: nn.Module | None = None,
    profile: bool = False,
    budget: TimeBudget | None = None,
    stop_after: int | None = None,
    same_data_as: RunFolder | None = None,
    same_fingerprints: Sequence[Mapping[str, str]] = (),
) -> Classifier:
    """Train what `config` describes, or go on with it, and leave the result in `run`.

    Args:
        config: The complete description.
        run: The folder, held by this process.
        progress: Receives what happens.
        splits: The data, for data sets that only exist in memory.
        model: The network to train, in place of `config.backbone`; a module that is no
            `Classifier` becomes one with the classes of the data.
        profile: Measure where the time goes, and leave it in `profile.json`.
        budget: The time a new run may take; it decides the epochs, which the run folder keeps.
        stop_after: Save and stop after this many epochs of the main phase.
        same_data_as: A run that this one is to be compared with, so that it must have its data.
        same_fingerprints: The fingerprints of the data of recorded runs that it is to be compared
            with.

    Returns:
        The deployed model.
    """
    classes = model.classes if isinstance(model, Classifier) else None
    splits = None if splits is None else _as_loaded(config, splits, classes)
    if run.done:
        splits = _check_finished(config, run, splits, classes)
    if run.done:  # still: new data may have started it anew
        return load_stored(run.model, model)[0]
    began = time.perf_counter()
    parts = _make_parts(config, progress, splits, model, classes)
    if same_data_as is not None:
        require_same_data(same_data_as, parts.splits)
    for recorded in same_fingerprints:
        require_fingerprints(recorded, parts.splits)
    config, costs = _schedule(config, run, parts, progress, budget)
    run.check_space(space_needed(config, parts.network, parts.source, parts.domains))
    _begin(config, run, parts)
    checkpointer = Checkpointer(run, minutes=config.checkpoint_minutes)
    recorder = Recorder(
        run,
        keep_snapshots=config.keep_snapshots,
        model_writer=partial(model_writer, config, run, parts.splits, parts.source),
    )
    _announce(run, checkpointer, parts, progress)
    plan = run_plan(config, len(parts.source), fitted=budget is not None)
    spent = time.perf_counter() - began if budget is None else time.monotonic() - budget.began
    progress.start_run(plan, costs, spent=spent)
    with _failures_recorded(run, checkpointer, recorder):
        with profiled(run.profile_file, parts.source.device) if profile else nullcontext():
            method = _train(config, checkpointer, recorder, parts, progress, stop_after)
    progress.enter("finish")
    deployed = _deployed(config, method, parts.source.clean)
    finish(config, run, method, parts.splits, parts.source.size, time.perf_counter() - began)
    return deployed


def _deployed(config: RunConfig, method: Method, clean: CleanImages) -> Classifier:
    """Return the deployed network with the batch statistics that it was evaluated with."""
    deployed = method.evaluated_networks[method.deployed_name]
    if config.batch_statistics == "clean" and method.deployed_name in method.needs_clean_statistics:
        recompute_statistics(deployed, clean)
    return deployed


def _as_loaded(config: RunConfig, splits: Splits, classes: tuple[str, ...] | None) -> Splits:
    """Do to data in memory what `load_splits` does to files: class names, targets of an oracle."""
    splits = match_classes(splits, classes, class_map=parse_class_map(config.data.class_map))
    return with_targets(splits) if config.oracle else splits


def _check_finished(
    config: RunConfig, run: RunFolder, splits: Splits | None, classes: tuple[str, ...] | None
) -> Splits | None:
    """Check that a finished run was trained on this data, if the data is available; return it.

    A run that may be renewed is started anew if it did not.
    """
    if run.may_renew:
        splits = splits or load_splits(config, classes)
    if splits is not None:
        refuse_changed_data(run, splits)
    return splits


@dataclass(frozen=True)
class _Parts:
    """Data and network of a run.

    Args:
        splits: The data, in the class order of the network.
        domains: The domains that observed models are evaluated on.
        source: The training images, on the run's device.
        network: The initial network, with the layers that pre-training needs.
        adapted: The same with the layers of the main phase; used for its layer structure only, the
            weights are set after pre-training.
        inputs: Fingerprints of inputs that the config refers to by name.
        about_weights: Sentences about the weights that were loaded.
    """

    splits: Splits
    domains: Mapping[str, Domain]
    source: Source
    network: Classifier
    adapted: Classifier
    inputs: Mapping[str, Any]
    about_weights: Sequence[str]


def _make_parts(
    config: RunConfig,
    progress: Progress,
    splits: Splits | None,
    model: nn.Module | None,
    classes: tuple[str, ...] | None,
) -> _Parts:
    """Load data and network and check that they fit together, before any work is done."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    find_device(config.device)
    if splits is None:  # before the weights: they may be a long download for the wrong folder
        benchmark(config.benchmark).require_source(config.data, data_root(config))
    if model is None:
        weights_file(config.backbone, config.weights)  # missing ones are reported before any work
    with showing(progress.reading):
        splits = splits or load_splits(config, classes)
        domains = evaluated_on(config, splits)
    for sentence in _describe(config, splits):
        progress.note(sentence)
    return _assemble(config, splits, domains, model)


def _assemble(
    config: RunConfig, splits: Splits, domains: Mapping[str, Domain], model: nn.Module | None
) -> _Parts:
    """Make source and network for loaded data, and check that everything fits together."""
    device = find_device(config.device)
    inputs = _fingerprints(config, model)  # before anything changes the network
    inputs |= input_models_record(config)
    check_batches(config, len(splits.train))
    config.average.check_validation(available=splits.validation is not None)
    source = Source(
        splits.train,
        config.transform,
        device=device,
        batches_from=config.method_settings.batches_from,
    )
    config.method_settings.check_images(source.size)
    if config.augments:
        config.augment.check_images(source.size)
    about_weights: list[str] = []
    network = make_network(config, model, splits.train.classes, source.size, about_weights.append)
    network = adapt_network(config, network, "pretrain", source.size)
    adapted = adapt_network(config, network, "train", source.size)
    network.to(device)
    if config.compile:
        network.encoder.compile()
    check_fit(network, splits, source.size)
    inputs["added_layers"] = list(adapted.added)
    return _Parts(splits, domains, source, network, adapted, inputs, about_weights)


def preview(configs: Sequence[RunConfig], progress: Progress) -> list[tuple[RunPlan, Costs | None]]:
    """Plan runs on the same data, and measure what their parts cost on this machine.

    The data is loaded once. Nothing is trained, but everything that a run would refuse at its
    start is refused here.

    Args:
        configs: Runs with the same data and the same evaluations.
        progress: Receives what happens.

    Returns:
        For each run its plan and its measured costs; None if these cannot be measured.
    """
    found = []
    parts: _Parts | None = None
    for config in configs:
        if parts is None:
            parts = _make_parts(config, progress, None, None, None)
        else:
            weights_file(config.backbone, config.weights)
            parts = _assemble(config, parts.splits, parts.domains, None)
        costs = measure_run_costs(config, parts.network, parts.source, parts.domains)
        found.append((run_plan(config, len(parts.source)), costs))
    return found


def _schedule(
    config: RunConfig,
    run: RunFolder,
    parts: _Parts,
    progress: Progress,
    budget: TimeBudget | None,
) -> tuple[RunConfig, Costs | None]:
    """The config whose epochs fit into the time that a new run was given, and measured costs."""
    if budget is not None and run.is_new:
        config, costs = fit_run(
            config, budget, parts.network, parts.source, parts.domains, progress
        )
        run.change_config(config)
        return config, costs
    if progress.shows_time:
        return config, measure_run_costs(config, parts.network, parts.source, parts.domains)
    return config, None


def _begin(config: RunConfig, run: RunFolder, parts: _Parts) -> None:
    """Write the manifest, or verify it when resuming."""
    device = parts.source.device
    for note in (*notes(config), *_precision_notes(config, device)):
        warnings.warn(note, PeerdgWarning, stacklevel=3)
    run.begin()
    check_manifest(config, run, parts.splits, device, parts.inputs)
    run.failure_file.unlink(missing_ok=True)


def _announce(
    run: RunFolder, checkpointer: Checkpointer, parts: _Parts, progress: Progress
) -> None:
    """Say where the run begins or goes on, and what was damaged."""
    going_on = [f"Going on {checkpointer.position}."]
    for sentence in going_on if checkpointer.resumes else parts.about_weights:
        progress.note(sentence)
    for problem in checkpointer.problems:
        warnings.warn(problem, PeerdgWarning, stacklevel=3)
        run.event("damaged", message=problem)
    run.event("resume" if checkpointer.resumes else "start", torch=torch.__version__)


@contextmanager
def _failures_recorded(
    run: RunFolder, checkpointer: Checkpointer, recorder: Recorder
) -> Iterator[None]:
    """Leave a record of a failure or a stop, and wait until everything is written."""
    try:
        yield
    except NumericalError as error:
        write_json(run.failure_file, {"error": error.message, **error.details})
        run.event("failure", message=error.message)
        raise
    except Stopped as stopped:
        run.event("stop", signal=stopped.signal_number, peak_memory=peak_memory())
        raise
    finally:
        try:
            checkpointer.close()
        finally:
            recorder.close()


def _train(
    config: RunConfig,
    checkpointer: Checkpointer,
    recorder: Recorder,
    parts: _Parts,
    progress: Progress,
    stop_after: int | None,
) -> Method:
    """Run pre-training, then the method; a resumed run continues in the phase where it stopped."""
    source = parts.source
    method: Method
    with stop_on_signals() as stop:
        services = Services(
            evaluate=partial(_evaluate, config, parts),
            as_evaluated=partial(_as_evaluated, config, source.clean),
            checkpoints=checkpointer,
            records=recorder,
            progress=progress,
            stop=stop,
        )
        for phase in phases_of(config, stop_after):
            if checkpointer.is_past(phase.name):
                continue
            seed = config.main_seed if phase.name == "train" else config.seed
            with seeded(seed, "init", phase.name):
                method = method_of(
                    phase, config, parts.network, source, images=len(source), domains=parts.domains
                ).to(source.device)
            if phase.name == "train":
                trained = next(iter(method.evaluated_networks))
                checkpointer.run.update_manifest(trained=trained, deployed=method.deployed_name)
            train = partial(run_phase, phase, method, source, seed=seed, services=services)
            if phase.name == "train":
                train()
            else:
                _pretrain(config, phase, train, parts, checkpointer, progress, stop)
            warn_if_nothing_was_learnt(checkpointer.run, phase, source)
    return method


def _pretrain(
    config: RunConfig,
    phase: Phase,
    train: Callable[[], None],
    parts: _Parts,
    checkpointer: Checkpointer,
    progress: Progress,
    stop: StopRequest,
) -> None:
    """Pre-train, or take what an equal run has pre-trained."""
    run, network, resumes = checkpointer.run, parts.network, checkpointer.resumes
    shared = shared_pretraining(config, phase, network, parts.source, run)
    if shared is None:
        record_start(run, shared, resumes=resumes)
        train()
    elif pretrain(train, shared, network, run, resumes=resumes, note=progress.note, stop=stop):
        epochs = phase.settings.epochs
        steps = steps_per_epoch(phase.settings, len(parts.source))
        progress.start_phase(phase.name, epochs=epochs, steps=steps, done=epochs)
        progress.note("Pre-training: that of an equal run is used (--no-share-pretraining).")


def _as_evaluated(
    config: RunConfig, clean: CleanImages, method: Method, before_chunk: Callable[[], None]
) -> AbstractContextManager[None]:
    """Give observed networks the batch statistics of `config.batch_statistics` inside the block."""
    if config.batch_statistics == "trained":
        return nullcontext()
    return clean_statistics(
        method.needs_clean_statistics.values(), clean, before_batch=before_chunk
    )


def _evaluate(
    config: RunConfig, parts: _Parts, method: Method, *, before_chunk: Callable[[], None]
) -> list[dict[str, Any]]:
    """Judge the observed networks; records name the rule of each one's batch statistics."""
    rule = config.batch_statistics
    return evaluate_models(
        method.evaluated_networks,
        parts.domains,
        copies={next(iter(method.networks)), *method.averages},
        size=parts.source.size,
        before_chunk=before_chunk,
        batch_statistics={
            name: method.statistics_of(name, rule) for name in method.evaluated_networks
        },
        oracle=bool(parts.inputs.get("oracle")),
    )


def _fingerprints(config: RunConfig, given: nn.Module | None) -> dict[str, Any]:
    """Fingerprints of inputs that the config refers to by name, for the manifest; see `Inputs`."""
    if isinstance(given, nn.Module):
        structure, values = network_fingerprint(given)
        return {"network": structure, "network_weights": values}
    if given is not None or not is_weights_file(config.weights):
        return {}
    return {"weights_sha256": sha256(Path(config.weights), follow_links=True)}


def _describe(config: RunConfig, splits: Splits) -> list[str]:
    """Sentences about the training images, for a user's own data."""
    if config.benchmark != "own-data" or config.root is None:
        return []
    classes, held_out = splits.train.classes, splits.validation
    names = ", ".join(classes[:8]) + (", ..." if len(classes) > 8 else "")
    sentences = [f"{len(splits.train):,} images of {len(classes)} classes to learn: {names}."]
    if held_out is not None:
        option = "--own-data.validation-fraction or --own-data.validation-folder"
        sentences.append(f"{len(held_out):,} images for validation ({option}).")
    if not splits.targets:
        sentences.append(
            "No target: evaluated on validation images and their distorted copies (--target)."
        )
    return sentences


def _precision_notes(config: RunConfig, device: torch.device) -> list[str]:
    if config.precision == "float32" or has_bf16(device):
        return []
    return [
        f"{str(device).upper()} has no bfloat16 arithmetic here; --precision bf16 is emulated and "
        "can be ten times slower. Use --precision float32."
    ]
