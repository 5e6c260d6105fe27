"""Train the runs of a bench, each with `peerdg resume FOLDER` in its own process.

A task is a picklable call that returns an exit code, so any `concurrent.futures.Executor` can run
it. The default is a pool of threads, each of which waits for a process on this machine. A run that
fails or is killed does not stop the others. A task whose run is in use by another process, or whose
result is lost, is submitted again: a run that is complete by then ends at once. On a signal, all
runs on this machine save their state and stop, and the next call continues from there.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from peerdg.benches.folder import BenchFolder
from peerdg.benches.plan import Plan, PlannedRun
from peerdg.data.decode import cores
from peerdg.errors import PeerdgError, RunInUseError, Stopped
from peerdg.files import remove, writing
from peerdg.methods.registry import loaded_plugin
from peerdg.report.runs import read_run
from peerdg.run.folder import RunFolder
from peerdg.terminal import is_live
from peerdg.train.signals import stop_on_signals

LOG = "log.txt"  # output of the process, in its run folder
POLL_SECONDS = 0.5
Connect = Callable[[], AbstractContextManager[Executor]]
"""Opens an executor for tasks. It is called again if tasks were lost with the connection."""

_processes: set["subprocess.Popen[bytes]"] = set()  # running processes of this bench


def run_folder(
    folder: str,
    *,
    threads: int | None = None,
    stop_after: int | None = None,
    plugin: str | None = None,
) -> int:
    """Start or continue the run in `folder`, and return the exit code of its process.

    The folder only needs a `config.toml`. The options are the same as in `peerdg resume`.
    """
    run = RunFolder(Path(folder))
    if run.status() == "running":  # another bench trains it, or a process of a killed one
        return RunInUseError.exit_code
    options = {"threads": threads, "stop_after": stop_after, "plugin": plugin}
    return _peerdg(resume_command(folder, **options), run.path / LOG, threads)


def resume_command(folder: str, **options: object) -> list[str]:
    """Return the command that starts or continues a run, without `peerdg`."""
    given = {name: value for name, value in options.items() if value is not None}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    return ["resume", folder, "--quiet", *flags]


def combine_folders(runs: Sequence[str], out: str, *, rule: str, outputs: str | None) -> int:
    """Combine runs into the model folder `out`, and return the exit code of the process."""
    remove(Path(out))  # an outdated or damaged model
    flags = ["--rule", rule, *([] if outputs is None else ["--outputs", outputs])]
    return _peerdg(["combine", *runs, "--output", out, *flags], Path(f"{out}.log"))


def _peerdg(arguments: Sequence[str], log: Path, threads: int | None = None) -> int:
    # -P: do not import packages from the current folder.
    command = [sys.executable, "-P", "-m", "peerdg", *arguments]
    paths = filter(None, (str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    with writing(log):
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            # In its own session, so that Ctrl-C reaches it only through `execute`.
            process = subprocess.Popen(  # noqa: S603  (a fixed command)
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
    _processes.add(process)
    try:
        return process.wait()
    finally:
        _processes.discard(process)


def threads_each(jobs: int, given: int | None = None) -> int | None:
    """Divide the CPU threads among parallel runs. Return None for one run: torch decides."""
    return given if given is not None or jobs == 1 else max(1, cores() // jobs)


@dataclass(frozen=True)
class Task:
    """A unit of work for an executor."""

    name: str  # name of the run or combined model
    call: Callable[[], int]  # does the work and returns an exit code
    log: Path  # file with its output

    def failure(self, future: "Future[int]") -> str | None:
        """Return the reason for a failure, from the last error in the log. None on success."""
        if (error := future.exception()) is not None:
            return str(error)
        code = future.result()
        if code == 0:
            return None
        if code < 0:
            name = signal.Signals(-code).name
            hint = " Out of memory? Try fewer --jobs." if name == "SIGKILL" else ""
            return f"The process was killed by {name}.{hint}"
        lines = self.log.read_text("utf-8", "replace").splitlines() if self.log.exists() else []
        errors = [line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")]
        last = [line for line in lines if line.strip()][-1:]
        return (errors or last or [f"The process ended with code {code}."])[-1]


def train_runs(
    plan: Plan,
    bench: BenchFolder,
    *,
    jobs: int = 1,
    console: Console | None = None,
    connect: Connect | None = None,
) -> dict[str, str]:
    """Train all incomplete runs, then combine the runs of combinations.

    The arguments are the same as in `run_bench`. The result maps names to reasons for failures.
    """
    runs = []
    for run, folder in incomplete_runs(plan, bench):
        threads = threads_each(jobs, run.config.threads)
        call = partial(run_folder, str(folder), threads=threads, **run_options(bench))
        runs.append(Task(run.name, call, folder / LOG))
    display, local = BenchDisplay(plan, bench, console), partial(ThreadPoolExecutor, jobs)
    with display.bars:
        failures = execute(runs, connect or local, display)
        return failures | combine_runs(plan, bench, connect or local, display)


def combine_runs(
    plan: Plan, bench: BenchFolder, connect: Connect, display: "BenchDisplay | None" = None
) -> dict[str, str]:
    """Combine the complete runs of combinations. The result is that of `train_runs`."""
    with bench.locked(plan):
        return execute(_combinations(plan, bench), connect, display)


def incomplete_runs(plan: Plan, bench: BenchFolder) -> list[tuple[PlannedRun, Path]]:
    """Create the folders of all incomplete runs, and return them."""
    return [(run, bench.begin(run).absolute()) for run in plan.runs if not bench.is_done(run)]


def run_options(bench: BenchFolder) -> dict[str, Any]:
    """Return the options of `peerdg resume` that all runs of a bench share."""
    plugin = loaded_plugin()
    path = None if plugin is None else str(plugin.path.absolute())
    return {"stop_after": bench.until, "plugin": path}


def _combinations(plan: Plan, bench: BenchFolder) -> list[Task]:
    """List the missing or outdated combinations whose runs are complete."""
    tasks = []
    for seed, group in product(plan.seeds, plan.groups):
        made, runs = group.combination, group.runs(seed)
        if made is None or bench.has_result(group, seed) or not all(map(bench.is_done, runs)):
            continue
        folders = [str(bench.run_folder(run).absolute()) for run in runs]
        out = str(bench.combined_folder(group, seed).absolute())
        call = partial(combine_folders, folders, out, rule=made.rule, outputs=made.outputs)
        tasks.append(Task(group.result(seed), call, Path(f"{out}.log")))
    return tasks


def is_in_use(future: "Future[int]") -> bool:
    """Whether a task has ended because another process has its run."""
    return future.exception() is None and future.result() == RunInUseError.exit_code


def execute(
    tasks: Sequence[Task], connect: Connect, display: "BenchDisplay | None" = None
) -> dict[str, str]:
    """Run the tasks, and return the reasons for failures, by name."""
    failures: dict[str, str] = {}
    terminated: set[subprocess.Popen[bytes]] = set()
    pending: dict[Future[int], Task] = {}
    waiting = list(tasks)
    with stop_on_signals() as stop, ExitStack() as connection:
        try:
            executor = connection.enter_context(connect())
            is_local = isinstance(executor, ThreadPoolExecutor)
            while waiting or pending:
                pending |= {executor.submit(task.call): task for task in waiting}
                waiting, is_lost = [], False
                for future in wait(pending, POLL_SECONDS, FIRST_COMPLETED).done:
                    task = pending.pop(future)
                    if stop:
                        continue
                    is_lost |= future.cancelled()  # with its scheduler or worker
                    if future.cancelled() or is_in_use(future):
                        waiting.append(task)
                        continue
                    failure = task.failure(future)
                    if failure is not None:
                        failures[task.name] = failure
                    if display is not None:
                        display.end(task.name, failure)
                if display is not None:
                    display.update(task.name for task in (*pending.values(), *waiting))
                if stop:
                    waiting = []
                    for future in pending:
                        future.cancel()
                    for process in _processes - terminated:  # also those that start late
                        terminated.add(process)
                        process.terminate()
                    if not is_local:
                        break
                elif is_lost:
                    connection.close()
                    executor = connection.enter_context(connect())
                elif waiting:
                    time.sleep(POLL_SECONDS)
        finally:  # an error, or a second Ctrl-C
            for future in pending:
                future.cancel()
            for process in _processes.copy():
                process.kill()
    if stop.signal_number is not None:
        saved = "The runs have saved their state." if is_local else "Runs on the workers go on."
        raise Stopped(
            f"Stopped. {saved} Repeat the command to continue.", signal_number=stop.signal_number
        )
    return failures


class BenchDisplay:
    """Show the progress of a bench: bars on a terminal, and a line for each run that ends."""

    def __init__(self, plan: Plan, bench: BenchFolder, console: Console | None) -> None:
        self.bench = bench
        self.console = console
        self.runs = {run.name: run for run in plan.runs}
        self.epochs = {
            run.name: bench.planned_epochs(run) if bench.is_done(run) else bench.trained_epochs(run)
            for run in plan.runs
        }
        self.bars = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(max_width=40)),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("epochs"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=console is None or not is_live(console),
            speed_estimate_period=1e9,  # estimate from all epochs so far
        )
        total = sum(map(bench.planned_epochs, plan.runs))
        self.all = self.bars.add_task("all runs", total=total, completed=sum(self.epochs.values()))
        self.rows: dict[str, TaskID] = {}

    def update(self, started: Iterable[str]) -> None:
        """Update the progress bars of the active runs from their folders."""
        names = [name for name in started if name in self.runs and self._is_running(name)]
        for name in self.rows.keys() - names:
            self.bars.remove_task(self.rows.pop(name))
        for name in names:
            run = self.runs[name]
            self.epochs[name] = self.bench.trained_epochs(run)
            if name not in self.rows:
                self.rows[name] = self.bars.add_task(name, total=self.bench.planned_epochs(run))
            self.bars.update(self.rows[name], completed=self.epochs[name])
        self.bars.update(self.all, completed=sum(self.epochs.values()))

    def _is_running(self, name: str) -> bool:
        return RunFolder(self.bench.run_folder(self.runs[name])).status() == "running"

    def end(self, name: str, failure: str | None) -> None:
        """Print how a run or a combination ended."""
        text = "done" if failure is None else f"failed: {failure}"
        if failure is None and name in self.runs:
            run = self.runs[name]
            self.epochs[name] = self.bench.planned_epochs(run)
            with contextlib.suppress(PeerdgError):  # the report lists damaged files
                result = read_run(self.bench.run_folder(run))
                score = result.score(result.deployed)
                text += "" if score is None else f", {result.deployed} {score:.1f} %"
        if self.console is not None:
            self.console.print(f"{name}: {text}", highlight=False, soft_wrap=True, markup=False)
