"""Train the runs of a bench, each with `peerdg resume FOLDER` in its own process.

A task is a picklable call that returns an exit code, so any `concurrent.futures.Executor` can run
it. The default is a pool of threads, each of which waits for a process on this machine. A run that
fails or is killed does not stop the others. On a signal, all runs save their state and stop, and
the next call continues from there.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

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
from peerdg.benches.plan import Plan
from peerdg.data.decode import cores
from peerdg.errors import PeerdgError, Stopped
from peerdg.files import remove, writing
from peerdg.methods.registry import loaded_plugin
from peerdg.report.runs import read_run
from peerdg.run.folder import RunFolder
from peerdg.terminal import is_live
from peerdg.train.signals import stop_on_signals

LOG = "log.txt"  # output of the process, in its run folder
POLL_SECONDS = 0.5

_processes: set["subprocess.Popen[bytes]"] = set()  # running processes of this bench
_stopping = threading.Event()


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
    while run.status() == "running" and not _stopping.is_set():
        _stopping.wait(POLL_SECONDS)  # a process from a killed bench is still training it
    options = {"--threads": threads, "--stop-after": stop_after, "--plugin": plugin}
    flags = [f"{name}={value}" for name, value in options.items() if value is not None]
    return _peerdg(["resume", folder, "--quiet", *flags], run.path / LOG, threads)


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
    executor: Executor | None = None,
) -> dict[str, str]:
    """Train all incomplete runs, then combine the runs of combinations.

    The arguments are the same as in `run_bench`. The result maps names to reasons for failures.
    """
    plugin = loaded_plugin()
    runs = []
    for run in plan.runs:
        if not bench.is_done(run):
            folder = bench.begin(run).absolute()
            call = partial(
                run_folder,
                str(folder),
                threads=threads_each(jobs, run.config.threads),
                stop_after=bench.until,
                plugin=None if plugin is None else str(plugin.path.absolute()),
            )
            runs.append(Task(run.name, call, folder / LOG))
    display = BenchDisplay(plan, bench, console)
    with ThreadPoolExecutor(jobs) as local, display.bars:
        failures = execute(runs, executor or local, display)
        return failures | execute(_combinations(plan, bench), executor or local, display)


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


def execute(tasks: Sequence[Task], executor: Executor, display: "BenchDisplay") -> dict[str, str]:
    """Run the tasks, and return the reasons for failures, by name."""
    _stopping.clear()
    failures: dict[str, str] = {}
    terminated: set[subprocess.Popen[bytes]] = set()
    pending: set[Future[int]] = set()
    with stop_on_signals() as stop:
        try:
            futures = {executor.submit(task.call): task for task in tasks}
            pending = set(futures)
            while pending:
                done, pending = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
                for future in done if not stop else ():
                    task = futures[future]
                    failure = task.failure(future)
                    if failure is not None:
                        failures[task.name] = failure
                    display.end(task.name, failure)
                display.update(futures[future].name for future in pending if future.running())
                if stop:
                    _stopping.set()
                    for future in pending:
                        future.cancel()
                    for process in _processes - terminated:  # also those that start late
                        terminated.add(process)
                        process.terminate()
        finally:  # an error, or a second Ctrl-C
            _stopping.set()
            for future in pending:
                future.cancel()
            for process in _processes.copy():
                process.kill()
    if stop.signal_number is not None:
        raise Stopped(
            "Stopped. The runs have saved their state. Repeat the command to continue.",
            signal_number=stop.signal_number,
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

    def update(self, running: Iterable[str]) -> None:
        """Update the progress bars of the active runs from their folders."""
        names = [name for name in running if name in self.runs]
        for name in self.rows.keys() - names:
            self.bars.remove_task(self.rows.pop(name))
        for name in names:
            run = self.runs[name]
            self.epochs[name] = self.bench.trained_epochs(run)
            if name not in self.rows:
                self.rows[name] = self.bars.add_task(name, total=self.bench.planned_epochs(run))
            self.bars.update(self.rows[name], completed=self.epochs[name])
        self.bars.update(self.all, completed=sum(self.epochs.values()))

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
