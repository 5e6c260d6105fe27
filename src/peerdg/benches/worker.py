"""The process of one run: `python -m peerdg.benches.worker`, started by a bench.

A job comes as one line of JSON on standard input, messages go to standard output as lines of JSON,
tracebacks to standard error. The bench keeps standard input open as long as it lives: when it
ends, however that happens, the run saves its state and ends, too. So a run that crashes, or is
killed for want of memory, takes nothing else with it.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peerdg.benches.estimate import RunTime, costs_from_json
from peerdg.benches.folder import PATIENCE, WAITING_SECONDS
from peerdg.errors import (
    ConfigError,
    PeerdgError,
    PeerdgWarning,
    RunInUseError,
    Stopped,
    is_out_of_memory,
)
from peerdg.files import remove
from peerdg.run.config import RunConfig, resolve
from peerdg.run.folder import RunFolder
from peerdg.run.forecast import Costs, Forecast, RunPlan
from peerdg.run.hardware import keep_memory
from peerdg.run.plugin import plugin_method
from peerdg.stages import Activity

if TYPE_CHECKING:
    from torch import Tensor

Send = Callable[[Mapping[str, Any]], None]

MESSAGE_SECONDS = 0.5  # between two messages about progress


class PipeProgress:
    """Sends what happens in a run to the bench that started it.

    Args:
        send: Takes a message.
        costs: Measured in advance, if they were.
        until: The run stops after the evaluation of this epoch, if it has more.
        clock: Seconds; only differences count.
    """

    shows_time = False  # costs are measured once for all seeds, by the bench

    def __init__(
        self,
        send: Send,
        costs: Costs | None,
        *,
        until: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.send = send
        self.costs = costs
        self.until = until
        self.has_arrived = False
        self.clock = clock
        self._forecast: Forecast | None = None
        self._position: dict[str, Any] = {}
        self._images = 0
        self._share = 0.0
        self._sent_at = 0.0

    def note(self, text: str) -> None:
        """Send a message."""
        self.send({"kind": "note", "text": text})

    def reading(self, what: str, done: int, total: int) -> None:
        """Send a message now and then."""
        self._report(activity=f"reading {what}")

    def start_run(self, plan: RunPlan, costs: Costs | None, *, spent: float) -> None:
        """Remember the plan, as far as the bench goes."""
        self._forecast = Forecast(plan.cut(self.until), self.costs, self.clock)

    def start_phase(self, name: str, *, epochs: int, steps: int, done: int, step: int = 0) -> None:
        """Send a message."""
        self._position = {"phase": name, "epoch": min(done + 1, epochs), "epochs": epochs}
        if self._forecast is not None:
            self._forecast.start_phase(name, epochs=done, steps=step)
        self._report(now=True)

    def enter(self, activity: Activity) -> None:
        """Send a message now and then."""
        if self._forecast is not None:
            self._forecast.enter(activity)
        if activity in ("evaluation", "finish"):
            self._report(activity=activity)

    def working(self, what: str, share: float) -> None:
        """Send a message now and then."""
        if what:
            self._report(activity=f"{what} {int(100 * share)} %")

    def step(self, epoch: int, step: int, *, images: int, terms: Mapping[str, "Tensor"]) -> None:
        """Count the step; send a message now and then."""
        if self._forecast is not None:
            self._forecast.step(epoch, step)
        self._position["epoch"], self._images = epoch + 1, images
        self._report()

    def evaluated(self, epoch: int, records: list[dict[str, Any]]) -> None:
        """Stop the run where it is to stop; the bench reads the records."""
        epochs = self._position.get("epochs", 0)
        if self.until is not None and self.until <= epoch < epochs:
            self.has_arrived = True
            signal.raise_signal(signal.SIGTERM)  # as if asked from outside: it saves its state

    def close(self) -> None:
        """Do nothing."""

    def _report(self, *, activity: str = "", now: bool = False) -> None:
        """Send where the run is, not more often than a person can see."""
        at = self.clock()
        if at - self._sent_at < MESSAGE_SECONDS and not now:
            return
        self._sent_at = at
        left = images_per_second = None
        if self._forecast is not None and self._position:
            left = self._forecast.left()
            self._share = max(self._share, self._forecast.share())
            seconds = self._forecast.step_seconds
            images_per_second = self._images / seconds if seconds else None
        self.send(
            {
                "kind": "progress",
                **self._position,
                "activity": activity,
                "share": self._share,
                "left": left,
                "images_per_second": images_per_second,
            }
        )


def train(job: Mapping[str, Any], send: Send) -> None:
    """Train one run, or go on with it, to its end or to where the bench is to stop."""
    config = resolve(job["config"])
    run = _open(Path(job["out"]), config, send)
    costs = None if job["costs"] is None else costs_from_json(job["costs"])
    progress = PipeProgress(send, costs, until=job.get("until"))
    try:
        from peerdg.run.runner import execute

        others = (RunFolder(Path(path)) for path in job["beside"])
        begun = next((other for other in others if other.manifest_file.exists()), None)
        recorded = job.get("recorded", [])
        execute(config, run, progress, same_data_as=begun, same_fingerprints=recorded)
    except Stopped:
        if not progress.has_arrived:
            raise
    finally:
        run.close()


def measure(job: Mapping[str, Any], send: Send) -> None:
    """Find out what runs cost, one for each group of a bench."""
    from peerdg.run.runner import preview

    configs = [resolve(config) for config in job["configs"]]
    for plan, costs in preview(configs, PipeProgress(send, None)):
        if costs is None:
            send({"kind": "costs", "costs": None})
        else:
            seconds = asdict(RunTime.of_costs(plan, costs))
            send({"kind": "costs", "costs": asdict(costs), "time": seconds})


def combine(job: Mapping[str, Any], send: Send) -> None:
    """Make one model of several runs, in place of one that was not theirs."""
    from peerdg.run.combine import combine as combine_runs

    remove(Path(job["out"]))
    combine_runs(
        [Path(run) for run in job["runs"]],
        Path(job["out"]),
        rule=job["rule"],
        outputs=job["outputs"],
    )


def _open(path: Path, config: RunConfig, send: Send) -> RunFolder:
    """Lock the run folder; the process of a bench that was killed may still save its state."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return RunFolder.open(path, config, existing="resume")
        except RunInUseError:
            if time.monotonic() > deadline:
                raise
            send({"kind": "progress", "activity": "waiting for the process that holds the folder"})
            time.sleep(WAITING_SECONDS)


def _send(message: Mapping[str, Any]) -> None:
    """Write a message; a bench that has ended reads none, and its run is about to end."""
    try:
        os.write(1, json.dumps(message).encode() + b"\n")
    except OSError:
        return


def _stop_with_the_bench() -> None:
    """Wait until the bench has ended; then ask this process to stop."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Do one job; the exit code is that of the command line."""
    with open(0, "rb", buffering=0, closefd=False) as jobs:
        job = json.loads(jobs.readline())
    threading.Thread(target=_stop_with_the_bench, daemon=True).start()
    warnings.showwarning = _show_warning
    warnings.simplefilter("always", PeerdgWarning)
    keep_memory()
    try:
        with _plugin_of(job):
            {"train": train, "measure": measure, "combine": combine}[job["job"]](job, _send)
        return 0
    except Stopped as stopped:
        return stopped.exit_code
    except PeerdgError as error:
        return _failed(error.message, error.hint, error.exit_code)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:
        traceback.print_exc()
        if is_out_of_memory(error):
            return _failed("There is not enough memory for this.", None, 1)
        text = f"{type(error).__name__}: {error}"
        return _failed(f"This is a bug in peerdg ({text}).", "Its traceback is in the log.", 1)


@contextmanager
def _plugin_of(job: Mapping[str, Any]) -> Iterator[None]:
    """Inside the block, the method of the bench's plugin is known here, too.

    Raises:
        ConfigError: If the file is not the one that the bench has loaded.
    """
    if (given := job.get("plugin")) is None:
        yield
        return
    with plugin_method(Path(given["path"])) as plugin:
        if plugin.identity != given["identity"]:
            raise ConfigError(
                f"The plugin {plugin.path} was changed while the bench was at work.",
                hint="Give the same command again with the file as it was, or start a new bench.",
            )
        yield


def _failed(message: str, hint: str | None, code: int) -> int:
    _send({"kind": "failed", "message": message, "hint": hint, "code": code})
    return code


def _show_warning(
    message: Warning | str, category: type[Warning], *_: object, **__: object
) -> None:
    if issubclass(category, PeerdgWarning):
        _send({"kind": "note", "text": f"Warning: {message}"})
    else:
        sys.stderr.write(f"{category.__name__}: {message}\n")


if __name__ == "__main__":
    sys.exit(main())
