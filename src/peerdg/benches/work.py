"""Train the runs of a bench, some at once, each in a process of its own.

What one of them does, be it a NaN or a process that is killed, is reported and stops no other. A
signal stops all of them; each saves its state, and the next call goes on from there.
"""

import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from peerdg.benches.children import Child, Children, Failure
from peerdg.benches.display import Shown
from peerdg.benches.estimate import Progress, RunTime, time_left
from peerdg.benches.folder import BenchFolder
from peerdg.benches.plan import Plan, PlannedRun
from peerdg.data.parallel import cores
from peerdg.errors import PeerdgError, Stopped
from peerdg.run.config import RunConfig
from peerdg.train.signals import StopRequest, stop_on_signals

LOOK_SECONDS = 0.2  # between two looks at the stop request


@dataclass(frozen=True)
class Estimate:
    """What is known about the time of each group's runs.

    Args:
        times: By the group's name.
        costs: Of the parts of its runs, where they were measured, as JSON has them.
    """

    times: Mapping[str, RunTime] = field(default_factory=dict)
    costs: Mapping[str, Any] = field(default_factory=dict)


def threads_each(jobs: int, given: int | None = None) -> int | None:
    """Divide the CPU threads among so many runs at once; None, for one, leaves it to torch."""
    if given is not None or jobs == 1:
        return given
    return max(1, cores() // jobs)


def estimate(
    plan: Plan, progress: Progress, *, threads: int | None, note: Callable[[str], None]
) -> Estimate:
    """Estimate the time of each group's runs from finished ones, else by trying a few steps.

    Raises:
        PeerdgError: If the data or a network cannot be used; nothing was trained then.
    """
    to_do = [g for g in plan.groups if not all(map(progress.is_done, plan.runs_of(g)))]
    times = {
        group.name: time
        for group in to_do
        if progress.epochs(group.config) == group.config.train.epochs  # else they took longer
        and (time := RunTime.of_runs(progress.of(plan.runs_of(group)))) is not None
    }
    unknown = [group for group in to_do if group.name not in times]
    costs: dict[str, Any] = {}
    if unknown:
        first = [group.runs(plan.seeds[0])[0].config for group in unknown]
        shown = [
            replace(c, threads=threads, train=replace(c.train, epochs=progress.epochs(c)))
            for c in first
        ]
        found = _measured(shown, threads, note)
        for group, answer in zip(unknown, found, strict=True):
            costs[group.name] = answer["costs"]
            if answer["costs"] is not None:
                times[group.name] = RunTime(**answer["time"])
    return Estimate(times, costs)


def _measured(
    runs: Sequence[RunConfig], threads: int | None, note: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Measure the costs of each run in a separate process, which frees its memory."""
    configs = [config.tables() for config in runs]
    children = Children(threads)
    answers: list[dict[str, Any]] = []
    with stop_on_signals() as stop:
        child = children.start("measure", {"job": "measure", "configs": configs})
        try:
            for message in _messages(children, stop):
                if message is None or message["kind"] == "end":
                    break
                if message["kind"] == "costs":
                    answers.append(message)
                elif message["kind"] == "failed":
                    child.failure = _failure(message)
                elif message["kind"] == "note":
                    note(message["text"])
            if stop:
                child.kill()
                _raise_stopped(stop, "Stopped before anything was trained.")
            failure = child.outcome()
        finally:
            child.kill()
    if failure is not None:
        raise error_of(failure)
    return answers


def _messages(children: Children, stop: StopRequest) -> Any:
    """Yield the messages of all processes; None once a signal asks to stop."""
    while not stop:
        try:
            yield children.messages.get(timeout=LOOK_SECONDS)[1]
        except queue.Empty:
            continue
    yield None


def error_of(failure: Failure) -> PeerdgError:
    """Rebuild the error that a process ended with, to raise it in this one."""
    error = PeerdgError(failure.message, hint=failure.hint)
    error.exit_code = failure.code
    return error


@dataclass(frozen=True)
class Task:
    """Something that a process does.

    Args:
        name: Of the run or the combined model.
        job: See `peerdg.benches.worker`.
        describe: What came out of it, in a few words.
    """

    name: str
    job: Mapping[str, Any]
    describe: Callable[[], str]


@dataclass
class Work:
    """Trains what is not finished, and combines what is to be combined.

    Args:
        plan: What to train.
        bench: The folder, held by this process.
        estimate: The time of each run.
        jobs: Runs at once.
        threads: CPU threads of each; None leaves it to torch.
        shown: Receives what happens.
        describe: A finished run in a few words, e.g. its accuracy.
    """

    plan: Plan
    bench: BenchFolder
    estimate: Estimate
    jobs: int
    threads: int | None
    shown: Shown
    describe: Callable[[Path], str]
    failures: dict[str, Failure] = field(default_factory=dict)
    _running: dict[str, tuple[Task, Child]] = field(default_factory=dict)
    _progress: Progress | None = None

    def train(self) -> dict[str, Failure]:
        """Train all runs that are not complete, then combine those of a combination.

        Returns:
            Why each run, or combination, that failed has failed.

        Raises:
            Stopped: If a signal asked for it; all runs under way have saved their state.
        """
        self._children = Children(self.threads)
        with stop_on_signals() as stop:
            try:
                self._run_tasks(map(self._training, self.plan.runs), stop)
                self._run_tasks(self._combinations(), stop)
            finally:
                for _, child in self._running.values():
                    child.kill()
        return self.failures

    def _run_tasks(self, tasks: Iterable[Task | None], stop: StopRequest) -> None:
        """Work off tasks, so many at once."""
        pending = deque(task for task in tasks if task is not None)
        while pending or self._running:
            while pending and len(self._running) < self.jobs:
                self._start(pending.popleft())
            self._listen()
            if stop:
                self._stop_all(stop)

    def _training(self, run: PlannedRun) -> Task | None:
        """Train a run; None if it is complete."""
        if self.bench.is_done(run):
            return None
        folder = self.bench.run_folder(run)
        job = {
            "job": "train",
            "config": replace(run.config, threads=self.threads or run.config.threads).tables(),
            "out": str(folder),
            "costs": self.estimate.costs.get(run.group.name),
            "until": self.bench.until,
            "beside": [str(self.bench.run_folder(r)) for r in self.plan.runs if r is not run],
            "recorded": [] if self.bench.recorded is None else self.bench.recorded.fingerprints,
        }
        return Task(run.name, job, lambda: self.describe(folder))

    def _combinations(self) -> Iterator[Task]:
        """Combine the runs of each seed that are complete."""
        for seed, group in product(self.plan.seeds, self.plan.groups):
            made, runs = group.combination, group.runs(seed)
            if made is None or self.bench.has_result(group, seed):
                continue
            if all(map(self.bench.is_done, runs)):
                job = {
                    "job": "combine",
                    "runs": [str(self.bench.run_folder(run)) for run in runs],
                    "out": str(self.bench.combined_folder(group, seed)),
                    "rule": made.rule,
                    "outputs": made.outputs,
                }
                yield Task(group.result(seed), job, lambda: "combined")

    def _start(self, task: Task) -> None:
        child = self._children.start(task.name, task.job, self.bench.log_file(task.name))
        self._running[task.name] = (task, child)
        self.shown.started(task.name)

    def _listen(self) -> None:
        """Handle one message, if there is one."""
        try:
            name, message = self._children.messages.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            return
        task, child = self._running[name]
        match message.get("kind"):
            case "progress":
                self.shown.progressed(name, message)
            case "note":
                self.shown.note(str(message["text"]))
            case "failed":
                child.failure = _failure(message)
            case "end":
                self._end(task, child)

    def _end(self, task: Task, child: Child) -> None:
        del self._running[task.name]
        failure = child.outcome()
        if failure is not None:
            self.failures[task.name] = failure
        text = task.describe() if failure is None else f"failed: {failure.message}"
        self.shown.ended(task.name, text, left=self._time_left())

    def _time_left(self) -> float | None:
        self._progress = Progress.read(self.bench, self.plan, self._progress)
        return time_left(
            self.plan, self._progress, self.estimate.times, jobs=self.jobs, without=self.failures
        )

    def _stop_all(self, stop: StopRequest) -> None:
        """Let every run save its state.

        Raises:
            Stopped: Always, with how to go on.
        """
        self.shown.note(f"Stopping: {len(self._running)} runs save their state.")
        for _, child in self._running.values():
            child.stop()
        while self._running:  # a second Ctrl-C raises KeyboardInterrupt here
            try:
                name, message = self._children.messages.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                continue
            if message.get("kind") == "end":
                self._running.pop(name)[1].close()
        done = sum(map(self.bench.is_done, self.plan.runs))
        _raise_stopped(
            stop,
            f"Stopped with {done} of {len(self.plan.runs)} runs complete, the others saved. "
            "Go on by giving the same command again.",
        )


def _failure(message: Mapping[str, Any]) -> Failure:
    return Failure(str(message["message"]), message.get("hint"), int(message.get("code", 1)))


def _raise_stopped(stop: StopRequest, message: str) -> None:
    raise Stopped(message, signal_number=stop.signal_number or 2)
