"""Train one run: load its inputs, train its phases, and write everything to its folder."""

import contextlib
import shutil
import time
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

import peerdg.distributed as distributed
from peerdg.data import VALIDATION
from peerdg.data.splits import Splits
from peerdg.errors import ConfigError, NumericalError, OutputError, PeerdgWarning, Stopped
from peerdg.evaluate.accuracy import evaluate_models
from peerdg.files import replace_atomically, write_json
from peerdg.methods.base import Method
from peerdg.models.classifier import Classifier, network_fingerprint
from peerdg.models.statistics import clean_statistics, recompute_statistics
from peerdg.models.stored import load_stored, save_tensors
from peerdg.options import dotted
from peerdg.rng import seeded
from peerdg.run.checkpoint import Background, Checkpointer
from peerdg.run.config import RunConfig, notes, resolve
from peerdg.run.folder import Existing, RunFolder, read_run_config
from peerdg.run.hardware import find_device, has_bf16, peak_memory
from peerdg.run.loggers import numbers_of, open_logger, require_logger
from peerdg.run.manifest import check_manifest, refuse_changed_data
from peerdg.run.model import finish, model_writer
from peerdg.run.prepare import Inputs, class_order, load_inputs, load_splits, make_method, phases_of
from peerdg.run.pretraining import pretrain, shared_entry
from peerdg.run.progress import ConsoleProgress, ProgressDisplay
from peerdg.run.records import NOTHING_LEARNED
from peerdg.run.time_budget import TimeBudget, estimate, fit_to_time, keep_schedule, schedule
from peerdg.stages import write_profile
from peerdg.terminal import command
from peerdg.train.loop import Hooks, run_phase
from peerdg.train.settings import Phase
from peerdg.train.signals import stop_on_signals
from peerdg.train.source import Source, steps_per_epoch
from peerdg.train.state import TrainState

STATE_FACTOR = 4  # training state relative to network size: weights, two moments, an average
CHECKPOINTS = 3  # checkpoints on disk at once: two, and the one being written
MODELS = 2  # models on disk at once: the stored one, and its replacement
CONSTANT_LOSS_SHARE = 0.98  # warn above this fraction of a constant prediction's loss
MIN_STEPS_TO_LEARN = 100  # shorter phases are not checked


def start_run(
    config: RunConfig,
    out: Path,
    *,
    existing: Existing,
    progress: ProgressDisplay,
    splits: Splits | None = None,
    model: nn.Module | None = None,
    profile: bool = False,
    minutes: float | None = None,
    options: Mapping[str, Any] | None = None,
    stop_after: int | None = None,
) -> tuple[RunConfig, Classifier]:
    """Open the run folder and start or continue the run in it.

    Args:
        config: Options of the run.
        out: Run folder.
        existing: How to treat an existing run, see `Existing`.
        progress: Progress display. It is closed at the end.
        splits: In-memory data, to use instead of the configured data set.
        model: Network to train instead of `config.backbone`. A module that is not a `Classifier`
            is converted to one, with the classes of the data.
        profile: Whether to time each stage and write the result to `profile.json`.
        minutes: Time for a new run. The number of epochs is chosen to fit it.
        options: Options that the user set. `minutes` does not change them.
        stop_after: Number of epochs of the main phase after which to save and stop.

    Returns:
        The options, with the chosen number of epochs, and the deployed network.
    """
    budget, began = None, time.monotonic()
    if minutes is not None and distributed.size() > 1:
        raise ConfigError("--minutes only works with one process.", hint="Choose --train.epochs.")
    distributed.connect(find_device(config.device))
    distributed.require_same("options", config.hash)
    for phase in phases_of(config):
        _check_batch_size(phase)
    if distributed.rank():
        return _follow_run(config, out, splits, model, stop_after)
    with contextlib.closing(progress):
        if minutes is not None:
            budget = TimeBudget(minutes, began, dotted(options or {}).keys())
            if existing in ("resume", "renew") and RunFolder(out).holds_run:
                config = keep_schedule(config, read_run_config(out), budget.given)
        with contextlib.closing(RunFolder.open(out, config, existing=existing)) as folder:
            if splits is not None or (folder.done and folder.renewal is not None):
                splits = load_splits(config, class_order(model), splits=splits)
            if folder.done and splits is not None:
                refuse_changed_data(folder, splits)  # restarts the run if that is allowed
            if folder.done:
                distributed.from_first("")
                return config, load_stored(folder.model, model)[0]
            return _train_run(config, folder, progress, splits, model, budget, profile, stop_after)


def _train_run(
    config: RunConfig,
    folder: RunFolder,
    progress: ProgressDisplay,
    splits: Splits | None,
    model: nn.Module | None,
    budget: TimeBudget | None,
    profile: bool,
    stop_after: int | None,
) -> tuple[RunConfig, Classifier]:
    began = time.perf_counter()
    require_logger(config.logger)
    inputs = load_inputs(
        config, splits=splits, model=model, note=progress.note, reading=progress.reading
    )
    is_shown = isinstance(progress, ConsoleProgress) and distributed.size() == 1
    if folder.new_config is not None and budget is None and is_shown:
        progress.note("Measuring how long a step takes.")
        with contextlib.suppress(RuntimeError, TypeError, NumericalError):  # then no estimate
            progress.note(estimate(config, inputs))
    elif folder.new_config is not None and budget is not None:
        progress.note("Measuring how long a step takes.")
        before = schedule(config)
        config = folder.new_config = fit_to_time(config, budget, inputs)
        progress.note(f"--minutes {budget.minutes:g}: {schedule(config)}, instead of {before}.")
    needed, free = space_needed(config, inputs.network), shutil.disk_usage(folder.path).free
    if free < needed:
        raise OutputError(
            f"The run needs {needed / 1e6:.1f} MB, but {folder.path} has {free / 1e6:.1f} MB free.",
            hint="Free some space, or choose a folder on another disk with --out.",
        )
    _warn_of_options(config, inputs.source.device)
    distributed.from_first(config.toml())
    distributed.require_same("images or weights", _inputs_hash(inputs))
    folder.begin()
    check_manifest(config, folder, inputs.splits, inputs.source.device, inputs.fingerprints)
    distributed.from_first("")  # the folder is ready
    folder.failure_file.unlink(missing_ok=True)
    run = Run(config, folder, inputs, progress)
    distributed.require_same("a checkpoint", run.checkpointer.position)
    with run.failures_recorded():
        method = run.train(profile=profile, stop_after=stop_after)
    deployed = _deployed(config, inputs, method)
    finish(config, folder, inputs, method, time.perf_counter() - began)
    distributed.disconnect()
    return config, deployed


def _follow_run(
    config: RunConfig,
    out: Path,
    splits: Splits | None,
    model: nn.Module | None,
    stop_after: int | None,
) -> tuple[RunConfig, Classifier]:
    """Take part in a run that process 0 has opened. Return its trained network."""
    text = distributed.from_first("")
    if not text:  # it is complete
        return config, load_stored(RunFolder(out).model, model)[0]
    config = resolve(tomllib.loads(text))
    inputs = load_inputs(config, splits=splits, model=model)
    distributed.require_same("images or weights", _inputs_hash(inputs))
    distributed.from_first("")  # an earlier run in the folder is removed
    run = Follower(config, RunFolder(out), inputs)
    distributed.require_same("a checkpoint", run.checkpointer.position)
    method = run.train(stop_after=stop_after)
    distributed.disconnect()  # once process 0 has written the model
    return config, _deployed(config, inputs, method)


def _deployed(config: RunConfig, inputs: Inputs, method: Method) -> Classifier:
    """Return the deployed network with the batch statistics of its evaluation."""
    name = method.deployed_name
    network = method.evaluated_networks[name]
    if config.batch_statistics == "clean" and name in method.needs_clean_statistics:
        recompute_statistics(network, inputs.source.clean)
    return network


def _check_batch_size(phase: Phase) -> None:
    """Raise if the processes cannot share a batch equally."""
    batch, processes = phase.settings.batch_size, distributed.size()
    if batch % processes:
        lower = batch // processes * processes
        sizes = [str(each) for each in (lower, lower + processes) if each > 0]
        raise ConfigError(
            f"{processes} processes cannot share a batch of {batch} images equally.",
            hint=f"Use --{phase.name}.batch-size {' or '.join(sizes)}, or fewer processes.",
        )


def _inputs_hash(inputs: Inputs) -> str:
    return f"{inputs.splits.fingerprint} {network_fingerprint(inputs.network)}"


class Run(Hooks):
    """Hooks for the training loop: evaluation, checkpoints, records and progress."""

    def __init__(
        self, config: RunConfig, folder: RunFolder, inputs: Inputs, progress: ProgressDisplay
    ) -> None:
        super().__init__()
        self.config, self.folder, self.inputs, self.progress = config, folder, inputs, progress
        self.checkpointer = Checkpointer(folder, minutes=config.checkpoint_minutes)
        self._background = Background()
        for problem in self.checkpointer.problems:
            warnings.warn(problem, PeerdgWarning, stacklevel=3)
            folder.event("damaged", message=problem)
        resumes = self.checkpointer.resumes
        continuing = [f"Continuing {self.checkpointer.position}."]
        for message in continuing if resumes else inputs.weight_messages:
            progress.note(message)
        folder.event("resume" if resumes else "start", torch=torch.__version__)
        begun = folder.events.read()[0]["time"]
        self._logger = config.logger and open_logger(
            config.logger, folder.path, config.tables(), begun=begun
        )

    @contextlib.contextmanager
    def failures_recorded(self) -> Iterator[None]:
        """Record a failure or a stop, and wait until everything is written."""
        try:
            yield
        except NumericalError as error:
            write_json(self.folder.failure_file, {"error": error.message, **error.details})
            self.folder.event("failure", message=error.message)
            raise
        except Stopped as stopped:
            self.folder.event("stop", signal=stopped.signal_number, peak_memory=peak_memory())
            raise
        finally:
            with contextlib.closing(self._background):
                self.checkpointer.close()
            if self._logger:
                self._logger.close()

    def train(self, *, profile: bool = False, stop_after: int | None = None) -> Method:
        """Train all phases and return the method. A resumed run continues where it stopped."""
        config, inputs, source = self.config, self.inputs, self.inputs.source
        phases = phases_of(config, stop_after)
        networks = 2 if config.deployed_average else 1
        # Per image, an evaluation takes a third of a training step: it has no backward pass.
        evaluated = networks * sum(map(len, inputs.domains.values()))
        self.progress.start_run(
            [(phase, steps_per_epoch(phase.settings, len(source))) for phase in phases],
            evaluation_steps=evaluated / config.train.batch_size / 3,
        )
        profiling: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if profile:
            profiling = write_profile(self.folder.profile_file, source.device)
        with profiling, stop_on_signals() as self.stop:
            for phase in phases:
                if self.checkpointer.is_past(phase.name):
                    continue
                seed = config.main_seed if phase.name == "train" else config.seed
                with seeded(seed, "init", phase.name):
                    validation = inputs.domains.get(VALIDATION)
                    method = make_method(phase, config, inputs.network, source, validation)
                method.to(source.device)
                with distributed.divided(method):
                    self.train_phase(phase, method, seed)
        return method

    def train_phase(self, phase: Phase, method: Method, seed: int) -> None:
        """Train a phase, and warn if it has learned nothing."""
        source = self.inputs.source
        if phase.name == "pretrain":
            self._pretrain(phase, method, seed)
        else:
            trained, deployed = next(iter(method.evaluated_networks)), method.deployed_name
            self.folder.update_manifest(trained=trained, deployed=deployed)
            run_phase(phase, method, source, seed=seed, hooks=self)
        _warn_if_nothing_was_learned(self.folder, phase, source)

    def _pretrain(self, phase: Phase, method: Method, seed: int) -> None:
        """Pre-train, or load the result of an identical pre-training."""
        network, source, note = self.inputs.network, self.inputs.source, self.progress.note
        train = partial(run_phase, phase, method, source, seed=seed, hooks=self)
        entry = shared_entry(self.config, phase, network, source, self.folder)
        # Do not share resumed pre-training: another version of peerdg may have started it.
        if self.checkpointer.resumes or entry is None:
            train()
        else:
            pretrain(train, entry, network, self.folder, note=note, stop=self.stop)

    @override
    def restore(self, state: TrainState) -> None:
        self.checkpointer.restore(state)

    @override
    def start_phase(self, phase: Phase, state: TrainState, *, steps: int) -> None:
        self.progress.start_phase(phase.name, epoch=state.epoch, step=state.step)

    @override
    def before_item(self, label: str, share: float) -> None:
        super().before_item(label, share)
        self.progress.work(label, share)

    @override
    def show_step(self, state: TrainState, *, images: int, terms: Mapping[str, Tensor]) -> None:
        self.progress.step(state.epoch, state.step, images=images, terms=terms)

    @override
    def record_epoch(
        self, state: TrainState, values: dict[str, Any], seconds: float, *, timed_steps: int
    ) -> None:
        self.folder.require_present()
        position, steps = {"phase": state.phase, "epoch": state.epoch + 1}, state.step
        self._record({"kind": "epoch", **position, **state.take_means(), **values})
        timed = {} if timed_steps == steps else {"timed_steps": timed_steps}
        self.folder.event("epoch", **position, steps=steps, seconds=round(seconds, 3), **timed)

    @override
    def evaluate(self, state: TrainState) -> None:
        method, rule = state.method, self.config.batch_statistics
        used = "frozen" if method.frozen_statistics else rule
        networks = method.evaluated_networks
        mode: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if rule == "clean":
            recomputed = method.needs_clean_statistics.values()
            mode = clean_statistics(recomputed, self.inputs.source.clean)
        with mode:
            records = evaluate_models(
                networks,
                self.inputs.domains,
                copies={next(iter(method.networks)), *method.averages},
                size=self.inputs.source.size,
                batch_statistics=dict.fromkeys(networks, used),
                oracle=bool(self.inputs.fingerprints.get("oracle")),
            )
            state.evaluated = True
            self.record_evaluation(state, records)

    def _record(self, *records: dict[str, Any]) -> None:
        self.folder.metrics.append(*records)
        if self._logger:
            for record in records:
                self._logger.log(numbers_of(record), record["epoch"])

    def record_evaluation(self, state: TrainState, records: list[dict[str, Any]]) -> None:
        """Write the results of an evaluation, and the networks."""
        position = {"phase": state.phase, "epoch": state.epoch}
        self._record(*({"kind": "evaluation", **position, **record} for record in records))
        if self.config.keep_snapshots:
            path = self.folder.snapshots / f"{state.epoch:06d}.safetensors"
            with replace_atomically(path) as file:
                save_tensors(file, state.method.trained.state_dict())
        write = model_writer(self.config, self.folder, self.inputs, state, records)
        if write is not None:
            self._background.start(write)
        self.progress.evaluated(state.epoch, records)

    @property
    @override
    def is_save_due(self) -> bool:
        return self.checkpointer.is_due

    @override
    def save(self, state: TrainState, *, wait: bool = False) -> None:
        self.folder.require_present()
        self._background.wait()  # a checkpoint must not be newer than the stored model
        self.checkpointer.save(state, wait=wait)

    @override
    def save_stopped(self, state: TrainState, stopped: Stopped) -> None:
        self.save(state, wait=True)
        self._background.wait()  # until the model of the last evaluation is written
        where = f"{state.phase} epoch {state.epoch + 1}, step {state.step}"
        path = self.folder.path
        stopped.message = f"Stopped in {where}. Saved. Continue with:\n  {command('resume', path)}"
        if self.folder.model.exists():
            predict = command("predict", path, "IMAGE")
            stopped.message += f"\n  or use the model so far:\n  {predict}"
        distributed.highest(0)  # the others wait until everything is saved


class Follower(Run):
    """Hooks of a process that shares a run with process 0. It writes nothing."""

    def __init__(self, config: RunConfig, folder: RunFolder, inputs: Inputs) -> None:
        Hooks.__init__(self)
        self.config, self.folder, self.inputs = config, folder, inputs
        self.progress = ProgressDisplay()
        self.checkpointer = Checkpointer(folder, minutes=config.checkpoint_minutes, writes=False)

    @override
    def train_phase(self, phase: Phase, method: Method, seed: int) -> None:
        run_phase(phase, method, self.inputs.source, seed=seed, hooks=self)

    @override
    def record_epoch(
        self, state: TrainState, values: dict[str, Any], seconds: float, *, timed_steps: int
    ) -> None:
        state.take_means()

    @override
    def record_evaluation(self, state: TrainState, records: list[dict[str, Any]]) -> None:
        pass

    @override
    def save(self, state: TrainState, *, wait: bool = False) -> None:
        pass

    @override
    def save_stopped(self, state: TrainState, stopped: Stopped) -> None:
        distributed.highest(0)  # until process 0 has saved the state


def _warn_of_options(config: RunConfig, device: torch.device) -> None:
    messages = notes(config)
    if config.precision == "bf16" and not has_bf16(device):
        messages.append(
            f"This {str(device).upper()} only emulates bfloat16, which can be ten times slower. "
            "Use --precision float32."
        )
    for message in messages:
        warnings.warn(message, PeerdgWarning, stacklevel=3)


def space_needed(config: RunConfig, network: Classifier) -> int:
    """Estimate the disk space in bytes: checkpoints, snapshots and models."""
    weights: int = sum(tensor.nbytes for tensor in network.state_dict().values())
    snapshots = phases_of(config)[-1].evaluations if config.keep_snapshots else 0
    return (CHECKPOINTS * STATE_FACTOR + MODELS + snapshots) * weights


def _warn_if_nothing_was_learned(folder: RunFolder, phase: Phase, source: Source) -> None:
    """Warn after a phase if the network makes the same prediction for every image.

    If the learning rate is too high, all units of a network can become zero without any non-finite
    number. The best constant prediction is the class frequencies p. Its cross-entropy on the source
    is H = -sum p log p, which is compared with the mean loss of the last epoch on clean images.
    A phase of one epoch is not checked, because its mean includes the untrained network.
    """
    metrics = folder.metrics.read()
    epochs = [r for r in metrics if r["kind"] == "epoch" and r["phase"] == phase.name]
    steps = phase.settings.epochs * steps_per_epoch(phase.settings, len(source))
    if len(epochs) < 2 or steps < MIN_STEPS_TO_LEARN:
        return
    domain = source.domain
    p = torch.bincount(domain.labels, minlength=len(domain.classes)).double() / len(domain)
    constant = float(-torch.special.xlogy(p, p).sum())
    loss = epochs[-1].get("ce_clean")  # not every method has this term
    if not isinstance(loss, float) or loss < CONSTANT_LOSS_SHARE * constant:
        return
    name = {"pretrain": "Pre-training", "train": "Training"}[phase.name]
    message = (
        f"{name} has learned nothing: its loss on clean images, {loss:.2f}, is the same as for a "
        f"constant prediction ({constant:.2f}). Lower the learning rate (--{phase.name}.lr "
        f"{phase.settings.lr:g}). If the loss is falling slowly, raise it or train longer."
    )
    warnings.warn(message, PeerdgWarning, stacklevel=2)
    folder.event(NOTHING_LEARNED, phase=phase.name, message=message)
