"""The runner itself, on a project of one function."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mutants.catalogue import Mutant, read_mutants
from tests.mutants.trial import FailingTests, Outcome, Trial

pytestmark = pytest.mark.slow  # it tests the runner of `make mutants`, not the package
SOURCE = "def double(x):\n    return 2 * x\n"
TEST = "from peerdg.toy import double\n\n\ndef test_double():\n    assert double(3) == 6\n"
WRONG = "def test_that_fails_anyway():\n    assert False\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    for name, text in {
        "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['slow']\n",
        "src/peerdg/__init__.py": "",
        "src/peerdg/toy.py": SOURCE,
        "tests/test_toy.py": TEST,
        "tests/test_wrong.py": WRONG,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def trial(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    with Trial(project, tmp_path_factory.mktemp("copy")) as trial:
        yield trial


def mutant(new: str, *, old: str = "return 2 * x", tests: str = "tests/test_toy.py") -> Mutant:
    return Mutant("name", "toy.py", "why", old, new, ((tests,),))


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ("return 3 * x", Outcome.KILLED),
        ("return x * 2", Outcome.SURVIVED),
        ("return 2 * x)", Outcome.BROKEN),
    ],
)
def test_a_mutant_is_killed_survives_or_cannot_be_imported(
    trial: Trial, new: str, expected: Outcome
):
    before = trial.digest()
    assert trial.run(mutant(new)) == expected
    assert trial.digest() == before  # the next mutant finds the file as it was


def test_a_mutant_that_never_ends_is_killed_by_the_timeout(project: Path, tmp_path: Path):
    """And so is what it has started: the test would else wait for a process that sleeps on."""
    endless = mutant("import subprocess; subprocess.run(['sleep', '10000'])")
    with Trial(project, tmp_path / "copy", timeout=2.0) as trial:
        trial._passing.add(("tests/test_toy.py",))  # a busy machine may need longer to say so
        assert trial.run(endless) == Outcome.TIMED_OUT


def test_text_that_is_not_there_exactly_once_does_not_apply(trial: Trial):
    assert trial.run(mutant("1", old="return 5")) == Outcome.NOT_APPLICABLE
    assert trial.run(mutant("1", old="x")) == Outcome.NOT_APPLICABLE


def test_tests_that_fail_anyway_say_nothing_about_a_mutant(trial: Trial):
    with pytest.raises(FailingTests, match="unchanged"):
        trial.run(mutant("return x * 2", tests="tests/test_wrong.py"))


PAGE = """
rest = ["tests/all"]
[[file]]
path = "a.py"
tests = ["tests/test_a.py"]
[[file.mutant]]
name = "{name}"
why = "why"
old = "1"
new = "{new}"
"""


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    def write(*pages: str) -> Path:
        for number, page in enumerate(pages):
            (tmp_path / f"{number}.toml").write_text(page)
        return tmp_path

    return write


def test_a_mutant_is_tried_with_the_tests_of_its_file_and_then_of_its_room(
    written: Callable[..., Path],
):
    (found,) = read_mutants(written(PAGE.format(name="one", new="2")))
    assert found.tests == (("tests/test_a.py",), ("tests/all",))
    assert found.apply("x = 1") == "x = 2"


def test_doubled_names_and_mutants_that_change_nothing_are_refused(written: Callable[..., Path]):
    page = PAGE.format(name="one", new="2")
    with pytest.raises(ValueError, match="same name: one"):
        read_mutants(written(page, page))
    with pytest.raises(ValueError, match="change nothing: two"):
        read_mutants(written(page, PAGE.format(name="two", new="1")))


def test_the_list_covers_every_room_of_the_core():
    found = read_mutants()
    assert len(found) >= 90
    rooms = {Path(m.path).parts[0] for m in found}
    assert {"losses", "methods", "models", "augment", "train", "evaluate"} <= rooms
