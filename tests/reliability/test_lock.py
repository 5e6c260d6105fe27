import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from peerdg.errors import RunInUseError
from peerdg.run.config import resolve
from peerdg.run.folder import RunFolder
from tests.reliability.processes import kill_group, peerdg, run, start

# Takes the folder at a given moment and holds it until its input ends; free of torch.
HOLDER = """
import sys, time
from pathlib import Path
from peerdg.errors import PeerdgError
from peerdg.run.folder import RunFolder
from peerdg.run.config import resolve
config = resolve()
print("ready", flush=True)
sys.stdin.readline()
try:
    run = RunFolder.open(Path(sys.argv[1]), config)
except PeerdgError as error:
    print(error.exit_code, error.message, flush=True)
    sys.exit(error.exit_code)
run.begin()
print("won", flush=True)
sys.stdin.readline()
run.close()
"""


def holder(out: Path) -> subprocess.Popen[str]:
    process = start([sys.executable, "-c", HOLDER, str(out)], stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_of_two_processes_started_together_exactly_one_wins(tmp_path: Path):
    for pair in range(2):
        out = tmp_path / str(pair)
        both = [holder(out), holder(out)]
        for process in both:
            go(process)
        lost, won = sorted(answer(process) for process in both)
        for process in both:
            process.communicate("\n")
        assert won == "won"
        assert lost.startswith("3 ") and "is in use" in lost


def test_the_second_command_exits_with_3_and_after_a_kill_can_start(tmp_path: Path):
    out = tmp_path / "run"
    first = holder(out)
    go(first)
    assert answer(first) == "won"
    owner = json.loads((out / "run.owner.json").read_text())
    assert RunFolder(out).status() == "running"
    second = run(peerdg("train", "digits-mini", "--out", out))
    assert second.returncode == 3
    for part in (str(first.pid), socket.gethostname(), owner["since"]):
        assert part in second.stderr
    assert "Traceback" not in second.stderr
    assert run(peerdg("resume", out)).returncode == 3
    kill_group(first)
    assert RunFolder(out).status() == "resumable"
    RunFolder.open(out, resolve(), existing="resume").close()


def test_one_process_cannot_take_a_folder_twice(tmp_path: Path):
    first = RunFolder.open(tmp_path / "run", resolve())
    with pytest.raises(RunInUseError, match=f"process {os.getpid()} "):
        RunFolder.open(tmp_path / "run", resolve(), existing="resume")
    first.close()
    RunFolder.open(tmp_path / "run", resolve(), existing="resume").close()


@pytest.mark.parametrize("name", [".tmp-probe-1", ".tmp-config.toml-1-ab", "run.owner.json"])
def test_what_a_process_killed_at_its_start_leaves_does_not_make_the_folder_foreign(
    tmp_path: Path, name: str
):
    (tmp_path / name).write_text("[]")
    RunFolder.open(tmp_path, resolve()).close()
