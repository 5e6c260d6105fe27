"""Run tests on a copy of the project in which one file is changed."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from tests.mutants.catalogue import Mutant

COPIED = ("src", "tests", "results", "pyproject.toml")
PACKAGE = Path("src/peerdg")
WORKER = Path(__file__).with_name("worker.py")
TIMEOUT = 600.0  # seconds for one stage of tests
# Exit codes of pytest.
PASSED, FAILED, NOT_COLLECTED = 0, 1, 2


class Outcome(StrEnum):
    """What the tests say of a mutant."""

    KILLED = "killed"
    TIMED_OUT = "killed by timeout"
    SURVIVED = "survived"
    NOT_APPLICABLE = "does not apply"
    BROKEN = "cannot be imported"


class FailingTests(Exception):
    """Tests that fail on the unchanged project, and would kill every mutant."""


class Trial:
    """A copy of the project, in which mutants are tried one after the other.

    Changes of the project after the copy was made do not matter.

    Args:
        project: The project's folder.
        folder: An empty folder for the copy.
        timeout: Seconds after which tests count as failed: a mutant may never end.
    """

    def __init__(self, project: Path, folder: Path, *, timeout: float = TIMEOUT) -> None:
        self.folder = folder
        self.timeout = timeout
        self._passing: set[tuple[str, ...]] = set()
        leave_out = shutil.ignore_patterns("__pycache__")
        for name in COPIED:
            if (project / name).is_dir():
                shutil.copytree(project / name, folder / name, ignore=leave_out)
            else:
                shutil.copy2(project / name, folder / name)
        self._worker = subprocess.Popen(
            [sys.executable, "-P", WORKER, str(timeout)],
            cwd=folder,
            env=os.environ
            | {
                "PYTHONPATH": str(folder / "src"),
                # Compiled files of a mutant could be taken for those of the next.
                "PYTHONDONTWRITEBYTECODE": "1",
                "OMP_NUM_THREADS": "1",
                "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "examples"),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.terminate()
        self._worker.communicate()

    def digest(self) -> str:
        """Changes with every file of the copy."""
        total = hashlib.sha256()
        for path in sorted(p for p in self.folder.rglob("*") if p.is_file()):
            total.update(f"{path.relative_to(self.folder)}\0".encode() + path.read_bytes())
        return total.hexdigest()

    def run(self, mutant: Mutant) -> Outcome:
        """Try one mutant; the copy is unchanged afterwards.

        Raises:
            FailingTests: If tests that it needs fail without it.
        """
        file = self.folder / PACKAGE / mutant.path
        try:
            original = file.read_text("utf-8")
            changed = mutant.apply(original)
        except (OSError, ValueError):
            return Outcome.NOT_APPLICABLE
        for tests in mutant.tests:
            self._check_unchanged(tests)
            file.write_text(changed, "utf-8")
            try:
                outcome = self._outcome(tests, mutant)
            finally:
                file.write_text(original, "utf-8")
            if outcome != Outcome.SURVIVED:
                return outcome
        return Outcome.SURVIVED

    def _check_unchanged(self, tests: tuple[str, ...]) -> None:
        if tests in self._passing:
            return
        if self._pytest(tests) != PASSED:
            raise FailingTests(f"These fail on the unchanged project: {' '.join(tests)}")
        self._passing.add(tests)

    def _outcome(self, tests: tuple[str, ...], mutant: Mutant) -> Outcome:
        code = self._pytest(tests)
        if code is None:
            return Outcome.TIMED_OUT
        if code == PASSED:
            return Outcome.SURVIVED
        if code == NOT_COLLECTED and not self._can_be_imported(mutant):
            return Outcome.BROKEN
        if code in (FAILED, NOT_COLLECTED) or code < 0:  # below 0: a crash
            return Outcome.KILLED
        raise FailingTests(f"pytest ends with exit code {code}: {' '.join(tests)}")

    def _pytest(self, tests: tuple[str, ...]) -> int | None:
        options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "--tb=no"]
        return self._ask({"pytest": [*options, *tests]})

    def _can_be_imported(self, mutant: Mutant) -> bool:
        module = ".".join(("peerdg", *Path(mutant.path).with_suffix("").parts))
        return self._ask({"import": module}) == 0

    def _ask(self, request: dict[str, Any]) -> int | None:
        """The exit code; None if it took too long."""
        assert self._worker.stdin is not None and self._worker.stdout is not None
        self._worker.stdin.write(json.dumps(request) + "\n")
        self._worker.stdin.flush()
        answer = self._worker.stdout.readline()
        if not answer:
            raise RuntimeError("The process that runs the tests has ended.")
        code: int | None = json.loads(answer)
        return code
