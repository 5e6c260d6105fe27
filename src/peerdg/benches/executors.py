"""Train the runs of a bench on a cluster: with dask, or as a Slurm array."""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

from peerdg.errors import ConfigError, PeerdgError
from peerdg.files import replace_atomically
from peerdg.terminal import one_line

PATIENCE_SECONDS = 120  # for a scheduler to answer, also after it was lost


@contextmanager
def dask(scheduler: str) -> Iterator[Executor]:
    """Connect to a dask scheduler, e.g. `tcp://127.0.0.1:8786`.

    A task starts `peerdg resume FOLDER` on a worker, so all machines need the same paths.
    """
    try:
        from distributed import Client
    except ImportError as error:
        hint = "pip install 'peerdg[dask]'"
        raise ConfigError("--executor dask needs the package distributed.", hint=hint) from error
    try:
        client = Client(scheduler, timeout=PATIENCE_SECONDS, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise PeerdgError(
            f"No dask scheduler answers at {scheduler}: {one_line(error)}",
            hint="Start it with `dask scheduler`, then repeat the command. No run is lost.",
        ) from error
    with client:
        yield client.get_executor(pure=False)  # type: ignore[no-untyped-call]


def submit_slurm(commands: Sequence[Sequence[str]], out: Path, options: str) -> str:
    """Submit an array job with one task per `peerdg resume` command. Return the job's number.

    `options` are passed to `sbatch`, e.g. `--partition gpu --time 1-0`. Before its time limit, a
    task saves the run and is queued again.
    """
    out = out.absolute()
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        hint = "Run this command on a machine that can submit jobs."
        raise ConfigError("--executor slurm needs the command sbatch.", hint=hint)
    lines = "".join(f"{shlex.join(words)}\n" for words in commands)
    # Tasks of an earlier submission may still read their own file.
    runs = out / f"slurm-{hashlib.blake2b(lines.encode(), digest_size=6).hexdigest()}.txt"
    with replace_atomically(runs) as temporary:
        temporary.write_text(lines, "utf-8")
    script = files("peerdg.benches").joinpath("slurm.sh").read_text("utf-8")
    command = [
        *(sbatch, "--parsable", f"--array=0-{len(commands) - 1}", "--job-name=peerdg"),
        *("--requeue", "--open-mode=append", "--signal=B:USR1@120"),
        *(f"--output={out / 'slurm-%a.log'}", *shlex.split(options)),
    ]
    environment = {**os.environ, "PEERDG_RUNS": str(runs)}
    environment |= {"PEERDG_PYTHON": sys.executable}
    made = subprocess.run(  # noqa: S603  (the user's own options)
        command, input=script, env=environment, capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise ConfigError(f"sbatch refused the job: {made.stderr.strip()}", hint="See --sbatch.")
    return re.split(r"[;\s]", made.stdout)[0]
