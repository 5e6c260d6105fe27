"""Search good options with Optuna, by source images only.

    OUT/journal.log      all trials, shared by all processes that work on the search
    OUT/runs/HASH/       the run of a trial, named by its options
    OUT/trials/          a lock for each trial, held by the process that works on it
    OUT/best.toml        the options of the best trial, for `peerdg train --config`
    OUT/tune.png         score against each option

A trial whose process has died is found by its lock. It is marked as failed, and its options are
queued again: its run continues from the last checkpoint.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock, Timeout

from peerdg.benches.execute import LOG, POLL_SECONDS, Task, execute, run_folder
from peerdg.errors import ConfigError, PeerdgError
from peerdg.evaluate.selection import Rule, Trajectory
from peerdg.evaluate.statistics import import_extra
from peerdg.files import replace_atomically, writing
from peerdg.methods.registry import settings_of
from peerdg.options import did_you_mean, dotted, merge, nested, read_toml
from peerdg.report.runs import read_run
from peerdg.rng import seed_for
from peerdg.run.config import RunConfig, resolve_given
from peerdg.run.folder import RunFolder
from peerdg.run.prepare import load_splits

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

WIDTH = 10.0  # default range: from a tenth of an option's value to ten times the value
ERROR = "error"  # attribute of a trial that was trained and failed


@dataclass(frozen=True)
class Range:
    """Values of an option to try: an interval, or a list."""

    low: float = 0
    high: float = 0
    log: bool = False
    values: tuple[Any, ...] = ()

    def suggest(self, trial: "Trial", name: str) -> Any:
        if self.values:
            return trial.suggest_categorical(name, self.values)
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(name, self.low, self.high, log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)

    @property
    def count(self) -> float:
        """Number of values."""
        if self.values:
            return len(self.values)
        both = isinstance(self.low, int) and isinstance(self.high, int)
        return self.high - self.low + 1 if both else math.inf

    @property
    def ends(self) -> tuple[Any, ...]:
        return self.values or (self.low, self.high)


Space = Mapping[str, Range]


def default_space(config: RunConfig) -> dict[str, Range]:
    """Return ranges around the learning rate and the announced options of the method."""
    space = {"train.lr": Range(config.train.lr / WIDTH, config.train.lr * WIDTH, log=True)}
    for field in fields(settings_of(config.method)):
        value = getattr(config.method_settings, field.name)
        if not field.metadata.get("announced") or type(value) not in (int, float) or value <= 0:
            continue
        low = max(1, value // 4) if isinstance(value, int) else value / WIDTH
        high = value * 4 if isinstance(value, int) else value * WIDTH
        if field.name == config.method_settings.period_option:  # at least three periods
            high = max(low, min(high, config.train.epochs // 3))
        space[f"{config.method}.{field.name}"] = Range(low, high, log=True)
    return space


def read_space(path: Path, config: RunConfig) -> dict[str, Range]:
    """Read ranges from a TOML file: `w = { low = 0.01, high = 10, log = true }` or a list.

    Whole bounds only mean whole numbers if the option's value in `config` is one.
    """
    space: dict[str, Range] = {}
    usual = dotted(config.tables())

    def read(table: Mapping[str, Any], prefix: str) -> None:
        for key, value in table.items():
            if isinstance(value, list) and value:
                if not all(isinstance(each, str | int | float) for each in value):
                    raise ConfigError(f"{prefix}{key} in {path} may list numbers and texts only.")
                space[prefix + key] = Range(values=tuple(dict.fromkeys(value)))
            elif isinstance(value, Mapping) and {"low", "high"} <= value.keys():
                for name in value.keys() - {"low", "high", "log"}:
                    hint = did_you_mean(name, ["low", "high", "log"])
                    raise ConfigError(f"Unknown key '{name}' of {prefix}{key}.", hint=hint)
                ends = {"low": value["low"], "high": value["high"]}
                if not all(isinstance(end, int | float) for end in ends.values()):
                    raise ConfigError(f"low and high of {prefix}{key} in {path} must be numbers.")
                if isinstance(usual.get(prefix + key), float):
                    ends = {name: float(end) for name, end in ends.items()}
                space[prefix + key] = Range(log=value.get("log", False), **ends)
            elif isinstance(value, Mapping):
                read(value, f"{prefix}{key}.")
            else:
                hint = "Write a list, or { low = 0.01, high = 10, log = true }."
                raise ConfigError(f"{prefix}{key} in {path} has no range.", hint=hint)

    read(read_toml(path), "")
    if not space:
        raise ConfigError(f"{path} has no ranges.")
    for name, each in space.items():
        if not each.values and (each.low >= each.high or (each.log and each.low <= 0)):
            raise ConfigError(f"{name} in {path} has an empty or invalid range.")
    return space


@dataclass(frozen=True)
class Search:
    """A search in a folder, on which several processes can work."""

    out: Path
    options: Mapping[str, Any]  # options of all trials, nested as in a config file
    space: Space
    rule: Rule  # scores a trial by source images
    trials: int

    def config(self, values: Mapping[str, Any]) -> RunConfig:
        """Resolve the options of a trial."""
        return resolve_given(merge(self.options, nested(values)))[0]

    def check(self) -> None:
        """Raise if an end of a range is not valid."""
        middle = {name: each.ends[0] for name, each in self.space.items()}
        for name, each in self.space.items():
            for end in each.ends:
                config = self.config({**middle, name: end})
        if self.rule == "crafted-val" and config.crafted == "off":
            raise ConfigError("--objective crafted-val needs --crafted disjoint.")
        if load_splits(config).validation is None:
            raise ConfigError("A search needs validation images of the source.")

    def study(self) -> "Study":
        """Open the study, or create it."""
        optuna = import_extra("optuna", "tune")
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with writing(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
        file = str(self.out / "journal.log")
        journal = JournalFileBackend(file, JournalFileOpenLock(file))
        space = {name: asdict(each) for name, each in self.space.items()}
        key = json.dumps([self.options, space, self.rule], sort_keys=True, default=str)
        name = hashlib.blake2b(key.encode(), digest_size=6).hexdigest()
        storage = optuna.storages.JournalStorage(journal)
        known = optuna.get_all_study_names(storage)
        if known and known != [name]:
            raise ConfigError(
                f"{self.out} has a search with other options.", hint="Choose another --out folder."
            )
        study: Study = optuna.create_study(
            storage=storage, study_name=name, direction="maximize", load_if_exists=True
        )
        return study

    def run(self, show: Callable[[str], None]) -> "Study":
        """Train trials until there are enough, and write the best options and a figure."""
        self.check()
        study = self.study()
        (self.out / "trials").mkdir(exist_ok=True)
        trials = min(self.trials, math.prod(each.count for each in self.space.values()))
        while (missing := trials - len(counted(study))) > 0:
            with self._next(study, missing) as trial:
                if trial is None:
                    time.sleep(POLL_SECONDS)  # other processes work on the last trials
                else:
                    self._train(study, trial, show)
        if not any(trial.value is not None for trial in study.trials):
            raise PeerdgError("All trials failed.", hint=f"See {self.out}/runs/*/{LOG}.")
        self._write_best(study)
        return study

    @contextmanager
    def _next(self, study: "Study", missing: float) -> "Iterator[Trial | None]":
        """Lock and yield the next trial, or None if others work on all that are missing."""
        optuna = import_extra("optuna", "tune")
        with FileLock(self.out / "tune.lock"):
            held = [t.number for t in _running(study) if self._is_held(t.number)]
            running = _running(study)  # again: a trial may have ended before its lock was tried
            lost = [each for each in running if each.number not in held]
            for dead in lost:
                study.tell(dead.number, state=optuna.trial.TrialState.FAIL)
                study.enqueue_trial(dead.params)
            if len(running) - len(lost) >= missing:
                trial = None
            else:
                others = [t for t in running if t not in lost]
                trial = self._ask(study, [t.params for t in (*counted(study), *others)])
                lock = FileLock(self.out / "trials" / f"{trial.number}.lock")
                lock.acquire()
        try:
            yield trial
        finally:
            if trial is not None:
                lock.release()

    def _ask(self, study: "Study", tried: Sequence[Mapping[str, Any]]) -> "Trial":
        """Draw options that were not tried before."""
        samplers = import_extra("optuna", "tune").samplers
        sampler = samplers.TPESampler
        while True:
            seed = seed_for(int(self.options.get("seed", 0)), "tune", len(study.trials))
            study.sampler = sampler(seed=seed % 2**32)
            trial = study.ask()
            for name, each in self.space.items():
                each.suggest(trial, name)
            if trial.params not in tried:
                return trial
            study.tell(trial, state=import_extra("optuna", "tune").trial.TrialState.FAIL)
            sampler = samplers.RandomSampler  # the other may insist

    def _is_held(self, number: int) -> bool:
        try:
            with FileLock(self.out / "trials" / f"{number}.lock", timeout=0):
                return False
        except Timeout:
            return True

    def _train(self, study: "Study", trial: "Trial", show: Callable[[str], None]) -> None:
        optuna = import_extra("optuna", "tune")
        folder, config = self.folder(trial.params).absolute(), self.config(trial.params)
        if not (folder / "config.toml").exists():
            with replace_atomically(folder / "config.toml") as temporary:
                temporary.write_text(config.toml(), "utf-8")
        task = Task(f"trial {trial.number}", partial(run_folder, str(folder)), folder / LOG)
        failures = execute([task], partial(ThreadPoolExecutor, 1))
        options = ", ".join(f"{name} = {short(value)}" for name, value in trial.params.items())
        if failures:
            diverged = RunFolder(folder).failure_file.exists()
            if diverged:
                trial.set_user_attr(ERROR, failures[task.name])
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            show(f"trial {trial.number}: {options}: failed: {failures[task.name]}")
            if not diverged:  # e.g. a full disk: the same would happen to all other trials
                raise PeerdgError(failures[task.name], hint="Repeat the command to continue.")
            return
        score = self.score(folder)
        study.tell(trial, score)
        show(f"trial {trial.number}: {options}: {score:.2f} % (best {study.best_value:.2f} %)")

    def folder(self, values: Mapping[str, Any]) -> Path:
        """Return the run folder for some options, which is the same for a trial queued again."""
        key = json.dumps(values, sort_keys=True)
        return self.out / "runs" / hashlib.blake2b(key.encode(), digest_size=6).hexdigest()

    def score(self, folder: Path) -> float:
        """Return the last accuracy of the deployed network on the rule's images, in percent."""
        run = read_run(folder)
        trajectory = Trajectory.from_records(run.evaluations, model=run.deployed)
        return trajectory.mean(max(trajectory.accuracy), trajectory.scored_by(self.rule))

    def _write_best(self, study: "Study") -> None:
        with replace_atomically(self.out / "best.toml") as temporary:
            temporary.write_text(self.config(study.best_params).toml(), "utf-8")
        draw_search(study, self.space, self.rule, self.out / "tune.png")


def _running(study: "Study") -> "list[FrozenTrial]":
    return [trial for trial in study.get_trials() if trial.state.name == "RUNNING"]


def counted(study: "Study") -> "list[FrozenTrial]":
    """Return the trials that were trained. A trial whose process died does not count."""
    return [t for t in study.trials if t.value is not None or ERROR in t.user_attrs]


def importances(study: "Study") -> dict[str, float]:
    """Estimate how much each option matters, as shares of 1. Empty if there are too few trials."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    complete = [t for t in study.trials if t.value is not None]
    if len({t.value for t in complete}) < 4 or len(study.best_params) < 2:
        return {}
    return dict(get_param_importances(study, evaluator=PedAnovaImportanceEvaluator()))


def draw_search(study: "Study", space: Space, rule: str, path: Path) -> None:
    """Plot the score of all trials against each option, the most important one first."""
    from peerdg.report.figures import COLORS, pyplot, save_figure

    share = importances(study)
    names = sorted(space, key=lambda name: -share.get(name, 0))
    figure, axes = pyplot().subplots(
        1, len(names), figsize=(1 + 3.2 * len(names), 3.4), sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    complete = [t for t in study.trials if t.value is not None]
    for axis, name in zip(axes[0], names, strict=True):
        values = [t.params[name] if not space[name].values else str(t.params[name])
                  for t in complete]  # fmt: skip
        axis.scatter(values, [t.value for t in complete], color=COLORS[0], s=18)
        best = study.best_params[name]
        best = str(best) if space[name].values else best
        axis.scatter([best], [study.best_value], marker="*", color=COLORS[1], s=120, zorder=3)
        if space[name].log:
            axis.set_xscale("log")
            axis.minorticks_off()
            ticks = np.geomspace(space[name].low, space[name].high, 4)
            axis.set_xticks(ticks, [f"{tick:.2g}" for tick in ticks])
        importance = f" (importance {share[name]:.0%})" if name in share else ""
        axis.set_xlabel(f"{name}{importance}", fontsize=9)
        axis.grid(alpha=0.25)
    axes[0, 0].set_ylabel(f"{rule}, %", fontsize=9)
    save_figure(figure, path, dpi=160)


def short(value: Any) -> str:
    """Format the value of an option."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
