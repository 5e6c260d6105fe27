"""Find out which mistakes no test notices: python -m tests.mutants [WORD ...] [--check] [--again].

Applies each mutant of the list to a copy of the project, runs the tests that should notice it, and
prints whether one of them fails. A run that was interrupted goes on where it was, as long as no
file has changed. Exit code 1 if a mutant survives without an explanation, does not apply any more,
or cannot be imported.

Words choose mutants: part of a name or of a path, e.g. `train/` or `momentum`.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.mutants.catalogue import Mutant, read_mutants
from tests.mutants.trial import PACKAGE, FailingTests, Outcome, Trial

PROJECT = Path(__file__).parents[2]
JOURNAL = PROJECT / ".mutants.jsonl"
NOTICED = (Outcome.KILLED, Outcome.TIMED_OUT)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="part of a mutant's name or path")
    parser.add_argument("--check", action="store_true", help="only see whether all still apply")
    parser.add_argument("--again", action="store_true", help="also run what has a result already")
    options = parser.parse_args(arguments)
    mutants = [m for m in read_mutants() if _chosen(m, options.words)]
    if options.check:
        return _check(mutants)
    os.nice(10)
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        Trial(PROJECT, Path(folder)) as trial,
    ):
        try:
            outcomes = _try(mutants, trial, again=options.again)
        except FailingTests as error:
            print(error)
            return 1
    return _summary(outcomes)


def _chosen(mutant: Mutant, words: list[str]) -> bool:
    return not words or any(word in mutant.name or word in mutant.path for word in words)


def _check(mutants: list[Mutant]) -> int:
    failures = 0
    for mutant in mutants:
        try:
            changed = mutant.apply((PROJECT / PACKAGE / mutant.path).read_text("utf-8"))
            compile(changed, mutant.path, "exec")
        except (OSError, ValueError, SyntaxError) as error:
            print(f"{mutant.name}: {error}")
            failures += 1
    print(f"{len(mutants) - failures} of {len(mutants)} mutants apply.")
    return 1 if failures else 0


def _try(mutants: list[Mutant], trial: Trial, *, again: bool) -> dict[Mutant, Outcome]:
    project = trial.digest()
    known = {} if again else _journal(project)
    outcomes: dict[Mutant, Outcome] = {}
    for number, mutant in enumerate(mutants, 1):
        began = time.monotonic()
        if (outcome := known.get(mutant.name)) is None:
            outcome = trial.run(mutant)
            with JOURNAL.open("a", encoding="utf-8") as file:
                record = {"project": project, "mutant": mutant.name, "outcome": outcome}
                file.write(json.dumps(record) + "\n")
        outcomes[mutant] = outcome
        seconds = f"{time.monotonic() - began:5.1f} s"
        print(f"{number:3} of {len(mutants)}  {seconds}  {outcome:18} {mutant.name}", flush=True)
    return outcomes


def _journal(project: str) -> dict[str, Outcome]:
    """Results for exactly these files, from a run that was interrupted."""
    if not JOURNAL.exists():
        return {}
    records = map(json.loads, JOURNAL.read_text("utf-8").splitlines())
    return {r["mutant"]: Outcome(r["outcome"]) for r in records if r["project"] == project}


def _summary(outcomes: dict[Mutant, Outcome]) -> int:
    failures = 0
    for mutant, outcome in outcomes.items():
        if outcome == Outcome.SURVIVED and mutant.survives:
            print(f"explained: {mutant.name}: {mutant.survives}")
        elif outcome not in NOTICED:
            failures += 1
            print(f"{outcome}: {mutant.name} ({mutant.path}): {mutant.why}")
        elif mutant.survives:
            failures += 1
            print(f"{outcome}, but explained: {mutant.name}: remove the explanation")
    counts = Counter(outcomes.values())
    print(", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
