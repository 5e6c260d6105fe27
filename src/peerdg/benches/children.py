"""Run jobs in processes of their own, and see what becomes of each."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from peerdg.files import writing
from peerdg.methods.registry import loaded_plugin

# -P: a file in the current folder is not imported in place of a package.
_COMMAND = [sys.executable, "-P", "-m", "peerdg.benches.worker"]
_PACKAGES = Path(__file__).resolve().parents[2]  # where this peerdg is imported from
_STOPS = {128 + number: number.name for number in (signal.SIGINT, signal.SIGTERM)}
LAST_MESSAGES = 10.0  # seconds to read what a process that has ended left in its pipe

Message = tuple[str, dict[str, Any]]
"""The name of a job, and a message of its process; `{"kind": "end"}` after the last."""


@dataclass(frozen=True)
class Failure:
    """Why a job was not done.

    Args:
        message: In a sentence.
        hint: What to do, if that is known.
        code: The exit code of the command line for it.
    """

    message: str
    hint: str | None = None
    code: int = 1


@dataclass
class Child:
    """The process of one job."""

    name: str
    process: subprocess.Popen[bytes]
    thread: threading.Thread
    failure: Failure | None = None

    def stop(self) -> None:
        """Ask it to save its state and end; a process that has ended is not asked."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, and wait for it."""
        if self.process.poll() is None:
            self.process.kill()
        self.close()

    def close(self) -> int:
        """Wait for its end; return its exit code, negative for a signal."""
        code = self.process.wait()
        self.thread.join(LAST_MESSAGES)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        return code

    def outcome(self) -> Failure | None:
        """Say why the job was not done, None if it was; call it after the end of the process."""
        code = self.close()
        if code == 0:
            return None
        if self.failure is not None:
            return self.failure
        if code < 0:
            name = signal.Signals(-code).name
            hint = "Perhaps for want of memory: fewer --jobs at once need less."
            killed = f"Its process was killed ({name})."
            return Failure(killed, hint if -code == signal.SIGKILL else None, 128 - code)
        if code in _STOPS:
            stopped = f"Its process was asked to stop ({_STOPS[code]}); its state is saved."
            return Failure(stopped, code=code)
        return Failure(f"Its process ended with {code}.", code=code)


@dataclass
class Children:
    """Starts processes, each with its number of threads, and collects their messages.

    Args:
        threads: CPU threads of each; None leaves it to torch.
    """

    threads: int | None = None
    messages: "queue.Queue[Message]" = field(default_factory=queue.Queue)

    def start(self, name: str, job: Mapping[str, Any], log: Path | None = None) -> Child:
        """Start a process for a job.

        It has a session of its own, so that Ctrl-C reaches it only through `Child.stop`.

        Args:
            name: Of the job, in messages.
            job: What to do, see `peerdg.benches.worker`.
            log: Where it writes what goes wrong; default: nowhere.
        """
        errors = _open_log(log)
        try:
            process = subprocess.Popen(  # noqa: S603  (a fixed command)
                _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                env=self._environment(), start_new_session=True,
            )  # fmt: skip
        finally:
            if not isinstance(errors, int):
                errors.close()
        thread = threading.Thread(target=self._listen, args=(name, process), daemon=True)
        child = Child(name, process, thread)
        thread.start()
        _send_job(process, {**job, **_plugin()})
        return child

    def _environment(self) -> dict[str, str]:
        paths = filter(None, (str(_PACKAGES), os.environ.get("PYTHONPATH")))
        threads = {} if self.threads is None else {"OMP_NUM_THREADS": str(self.threads)}
        return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(paths)}

    def _listen(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Pass on each message; ignore other output."""
        assert process.stdout is not None  # noqa: S101  (narrows the type)
        for line in process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict):
                self.messages.put((name, message))
        process.wait()
        self.messages.put((name, {"kind": "end"}))


def _plugin() -> dict[str, Any]:
    """The plugin of this process, so that another one can load the same."""
    plugin = loaded_plugin()
    if plugin is None:
        return {}
    return {"plugin": {"path": str(plugin.path.absolute()), "identity": plugin.identity}}


def _send_job(process: subprocess.Popen[bytes], job: Mapping[str, Any]) -> None:
    """Send a process its job; the pipe stays open as long as this process lives."""
    assert process.stdin is not None  # noqa: S101  (narrows the type)
    try:
        process.stdin.write(json.dumps(job, default=str).encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:  # it has ended already; its exit code says why
        return


def _open_log(log: Path | None) -> int | IO[bytes]:
    if log is None:
        return subprocess.DEVNULL
    with writing(log):
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("ab")
