"""Nothing around a run decides what it computes."""

import json
import locale
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reliability import tiny_run
from tests.reliability.processes import environment

OPTIONS = '{"train": {"epochs": 2}, "pretrain": {"epochs": 1}}'
# Makes the same tiny run under a umask and in a folder of its own.
RUN = f"""
import os, sys
os.umask(int(sys.argv[1], 8))
from tests.reliability.tiny_run import main
sys.exit(main(sys.argv[2], {OPTIONS!r}))
"""
FILES = ("model/model.safetensors", "model/model.json", "metrics.jsonl", "done.json", "config.toml")


def comma_locale() -> str:
    """A locale with a decimal comma if the system has one, else the plainest."""
    for name in ("de_DE.UTF-8", "fr_FR.UTF-8", "nl_NL.UTF-8"):
        try:
            locale.setlocale(locale.LC_NUMERIC, name)
        except locale.Error:
            continue
        locale.setlocale(locale.LC_NUMERIC, "C")
        return name
    return "C"


SETTINGS = {
    "everything": (
        {"TZ": "Pacific/Chatham", "PYTHONHASHSEED": "random", "LC_ALL": comma_locale(),
         "COLUMNS": "20", "TERM": "dumb", "HOME": "/"}, "027",
    ),
    "ascii": ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "022"),
}  # fmt: skip


def files_of_run(here: Path, variables: dict[str, str], umask: str) -> dict[str, bytes]:
    """Train in a process with these variables; returns what must not depend on them."""
    here.mkdir()
    result = subprocess.run(
        [sys.executable, "-c", RUN, umask, "run"],
        env=environment(**variables),
        cwd=here,
        capture_output=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr.decode()
    modes = {p.stat().st_mode & 0o777 for p in (here / "run/model").iterdir()}
    assert modes == {0o666 & ~int(umask, 8)}
    return contents_of(here / "run")


def contents_of(run: Path) -> dict[str, bytes]:
    contents = {file: (run / file).read_bytes() for file in FILES}
    json.loads(contents["done.json"])
    return contents


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Of a run in this process, with the environment of the tests."""
    run = tmp_path_factory.mktemp("environment") / "plain"
    assert tiny_run.main(str(run), OPTIONS) == 0
    return contents_of(run)


@pytest.mark.parametrize("name", SETTINGS)
def test_clock_locale_hashes_umask_and_folder_have_no_influence(name, plain, tmp_path: Path):
    assert files_of_run(tmp_path / "other", *SETTINGS[name]) == plain
