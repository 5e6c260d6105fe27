"""`python -m benchmarks [NAME...]`: measure, print, keep the results, write the table of the docs.

Without names everything is measured, one benchmark after the other, each in its own process; that
takes about half an hour on two cores. Nothing else should run meanwhile.
"""

import importlib
import subprocess
import sys

from benchmarks.table import NAMES, show, write_page


def main() -> None:
    """Measure the benchmarks named on the command line, or all."""
    names = sys.argv[1:] or NAMES
    if unknown := [name for name in names if name not in NAMES]:
        sys.exit(f"Unknown benchmark '{unknown[0]}'. Known: {', '.join(NAMES)}.")
    for name in names:
        if len(names) > 1:
            subprocess.run([sys.executable, "-m", "benchmarks", name], check=True)
        else:
            found = importlib.import_module(f"benchmarks.{name}").run()
            print(show(found))
            found.save()
    write_page()


if __name__ == "__main__":
    main()
