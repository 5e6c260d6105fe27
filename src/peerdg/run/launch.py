"""Start the processes of a run on this machine, as `torchrun` does."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from peerdg.data.decode import cores
from peerdg.errors import ConfigError, PeerdgError

POLL_SECONDS = 0.1
GRACE_SECONDS = 20.0  # for the other processes to notice that one has ended


def launch(arguments: Sequence[str], processes: int) -> int:
    """Run `peerdg ARGUMENTS` in several processes that share a run, and return the exit code."""
    if processes > cores():
        raise ConfigError(f"--processes is {processes}, but this machine has {cores()} cores.")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        "OMP_NUM_THREADS": str(max(1, cores() // processes)),
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(processes),
    }
    command = [sys.executable, "-P", "-m", "peerdg", *arguments]
    started: list[subprocess.Popen[bytes]] = []
    passed_on: list[int] = []
    try:
        for rank in map(str, range(processes)):
            own = {**environment, "RANK": rank, "LOCAL_RANK": rank}
            started.append(subprocess.Popen(command, env=own))  # noqa: S603  (our own command)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all processes

        def pass_on(number: int, _: object) -> None:
            passed_on.append(number)
            for each in started:
                each.send_signal(number)

        signal.signal(signal.SIGTERM, pass_on)
        ends = None
        while ends is None or time.monotonic() < ends:
            codes = [each.poll() for each in started]
            if None not in codes:
                break
            if ends is None and any(codes):
                ends = time.monotonic() + GRACE_SECONDS
            time.sleep(POLL_SECONDS)
        if passed_on:
            return 128 + passed_on[0]
        for number, code in enumerate(codes):
            if code is not None and code < 0:
                name = signal.Signals(-code).name
                hint = "Out of memory? Use fewer --processes." if name == "SIGKILL" else None
                message = f"Process {number} of {processes} was killed by {name}."
                raise PeerdgError(message, hint=hint)
        return next((code for code in codes if code), 0)
    finally:
        for each in started:
            each.kill()
