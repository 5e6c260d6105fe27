"""The list of mutants: mistakes that somebody could make in the package, as text to replace.

Each `*.toml` beside this file covers one room of the package:

    rest = ["tests/run/test_resume_all.py"]     # tried when none of a file's own tests fails

    [[file]]
    path = "train/order.py"                        # under src/peerdg
    tests = ["tests/train/test_order.py"]          # tried first: the nearest and fastest ones

    [[file.mutant]]
    name = "same-order-in-every-epoch"
    why = "what goes wrong with it"
    old = 'text that occurs once in the file'
    new = 'text that takes its place'
    survives = "why no test can notice it"         # only for mutants that change no result
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Mutant:
    """One mistake.

    Args:
        name: How to call it; unique.
        path: The changed file, under the package's folder.
        why: What goes wrong with it.
        old: Text that occurs once in the file.
        new: Text that takes its place.
        tests: Arguments of pytest, in stages; a later one only if all tests before it pass.
        survives: Why it changes no result; None if a test must notice it.
    """

    name: str
    path: str
    why: str
    old: str
    new: str
    tests: tuple[tuple[str, ...], ...]
    survives: str | None = None

    def apply(self, source: str) -> str:
        """The changed text of the file.

        Raises:
            ValueError: If the old text does not occur exactly once.
        """
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"the old text occurs {count} times in {self.path}")
        return source.replace(self.old, self.new)


def read_mutants(folder: Path = FOLDER) -> list[Mutant]:
    """All mutants of the TOML files in `folder`.

    Raises:
        ValueError: If two have one name, or one changes nothing.
    """
    found = []
    for page in sorted(folder.glob("*.toml")):
        room = tomllib.loads(page.read_text("utf-8"))
        for file in room["file"]:
            stages = tuple(tuple(tests) for tests in (file["tests"], room["rest"]) if tests)
            for mutant in file["mutant"]:
                found.append(Mutant(**mutant, path=file["path"], tests=stages))
    names = [mutant.name for mutant in found]
    if doubled := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"Mutants of the same name: {', '.join(sorted(doubled))}")
    if same := [mutant.name for mutant in found if mutant.old == mutant.new]:
        raise ValueError(f"Mutants that change nothing: {', '.join(same)}")
    return found
