"""Kill trainings at random moments, resume them, and compare with one that nobody disturbed.

Every kill is SIGKILL to the whole process group, and a checkpoint is saved after every step, so
many kills fall into a save. The moment of a kill is drawn uniformly over the time the undisturbed
run took (start of the process included); that of a tiny run over the first half of its training,
as its process takes ten times as long to start. When a run ends before it is killed, it is compared
and the next one begins.
"""

import random
import subprocess
import time
from pathlib import Path

from peerdg.errors import DamagedError
from peerdg.run.checkpoint import checkpoints, load_checkpoint
from tests.reliability import tiny_run
from tests.reliability.processes import kill_group, leftovers, peerdg, run, start, tiny

# fmt: off
SMALL = (
    "--digits-mini.train", "128", "--target", "uci", "--pretrain.epochs", "1", "--epochs", "2",
    "--pretrain.batch-size", "64", "--train.batch-size", "64", "--threads", "1", "--peer.k", "1",
    "--checkpoint-minutes", "0", "--keep-snapshots", "--quiet",
)
# fmt: on


def kill_and_resume(folder: Path, *, kills: int, seed: int, small: bool) -> list[str]:
    """Every difference that was seen, as sentences; none is what is promised."""
    draw = random.Random(seed)
    if small:
        _to_the_end(folder / "first", small=True)  # loads what only a training needs
    began = time.monotonic()
    reference = folder / "undisturbed"
    _to_the_end(reference, small=small)
    expected = time.monotonic() - began
    print(f"seed {seed}: undisturbed run in {expected:.1f} s")
    problems: list[str] = []
    done, number = 0, 0
    while done < kills:
        out = folder / f"killed-{number}"
        number += 1
        here = 0
        while not (out / "done.json").exists():
            if done < kills:
                moment = draw.uniform(0, expected / 2 if small else expected)
                killed = _run_until(_command(out, small=small), moment, once_training=small)
                done, here = done + killed, here + killed
                problems += [f"{out.name}: {p}" for p in _unreadable(out)]
            else:
                _to_the_end(out, small=small)
        found = _differences(reference, out)
        problems += found
        print(f"{out.name}: {here} kills, {'equal' if not found else 'DIFFERENT'}")
    return problems


def _command(out: Path, *, small: bool) -> list[str]:
    """What starts the training into `out`, or goes on with it."""
    if small:
        return tiny(out)
    if (out / "config.toml").exists():
        return peerdg("resume", out, "--quiet")
    return peerdg("train", "digits-mini", *SMALL, "--out", out)


def _to_the_end(out: Path, *, small: bool) -> None:
    """Nobody kills it; a tiny run needs no process of its own then."""
    code = tiny_run.main(str(out)) if small else run(_command(out, small=small)).returncode
    assert code == 0


def _run_until(command: list[str], moment: float, *, once_training: bool) -> bool:
    """Kill the process after `moment` seconds of it, or of its training; False if it was done."""
    process = start(command)
    if once_training:
        assert process.stdout is not None
        process.stdout.readline()
    try:
        process.wait(moment)
    except subprocess.TimeoutExpired:
        kill_group(process)
        return True
    _, said = process.communicate()
    assert process.returncode == 0, said
    return False


def _unreadable(out: Path) -> list[str]:
    problems = []
    for path in checkpoints(out / "checkpoint"):
        try:
            load_checkpoint(path)
        except DamagedError as error:
            problems.append(error.message)
    return problems


def _differences(reference: Path, out: Path) -> list[str]:
    names = ["model/model.safetensors", "model/model.json", "metrics.jsonl", "done.json"]
    names += [f"snapshots/{path.name}" for path in (reference / "snapshots").glob("*")]
    unequal = [
        f"{out.name}: {name} differs"
        for name in names
        if (reference / name).read_bytes() != (out / name).read_bytes()
    ]
    left = [f"{out.name}: {path.relative_to(out)} is left over" for path in leftovers(out)]
    return unequal + left
