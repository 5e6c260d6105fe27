"""Start peerdg in processes of its own, the way a user or a scheduler does."""

import os
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]


def peerdg(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "peerdg", *map(str, arguments)]


def tiny(out: Path, *options: str) -> list[str]:
    """A training of a second on data in memory; called again, it resumes."""
    return [sys.executable, "-m", "tests.reliability.tiny_run", str(out), *options]


def environment(**extra: str) -> dict[str, str]:
    paths = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, **extra}


def start(command: list[str], **options) -> subprocess.Popen[str]:
    """In a process group of its own, so that the whole group can be killed."""
    return subprocess.Popen(
        command,
        env=options.pop("env", None) or environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def run(command: list[str], **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=options.pop("env", None) or environment(),
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


def kill_group(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def leftovers(folder: Path) -> list[Path]:
    return sorted(folder.rglob(".tmp*"))
