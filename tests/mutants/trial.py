"""Run tests on a copy of the project in which one file is changed."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from enum import StrEnum
from pathlib import Path

from tests.mutants.catalogue import Mutant

COPIED = ("src", "tests", "pyproject.toml")
PACKAGE = Path("src/peerdg")
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
        return self._python("-m", "pytest", *options, *tests)

    def _can_be_imported(self, mutant: Mutant) -> bool:
        module = ".".join(("peerdg", *Path(mutant.path).with_suffix("").parts))
        return self._python("-c", f"import {module}") == 0

    def _python(self, *arguments: str) -> int | None:
        """The exit code; None if it took too long."""
        environment = os.environ | {
            "PYTHONPATH": str(self.folder / "src"),
            # Compiled files of a mutant could be taken for those of the next.
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self.folder / "examples"),
        }
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(self.timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:  # also what the tests have started, and also after Ctrl-C
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
