"""`make audit`: whether a pinned dependency has a published vulnerability, by pip-audit.

pip-audit ends well when its database answers for no package at all, so its report is read here: a
check that could not be made is not a pass.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PINNED = Path(__file__).parents[1] / "constraints.txt"
SOUND, VULNERABLE, UNCHECKED = 0, 1, 2
_SHOWN = 5  # packages that are named of those that could not be checked


def verdict(report: Mapping[str, Any] | None) -> tuple[int, list[str]]:
    """The exit code, and what to print.

    Args:
        report: What pip-audit wrote as JSON; None if it wrote nothing.
    """
    packages: Sequence[Mapping[str, Any]] = (report or {}).get("dependencies", [])
    checked = [package for package in packages if "vulns" in package]
    if not checked:
        return UNCHECKED, ["The database of advisories cannot be reached: NOTHING WAS CHECKED."]
    found = [(package, v) for package in checked for v in package["vulns"]]
    lines = [
        f"{package['name']} {package['version']}: {vulnerability['id']}, "
        f"fixed in {', '.join(vulnerability['fix_versions']) or 'no release'}"
        for package, vulnerability in found
    ]
    skipped = [package["name"] for package in packages if "vulns" not in package]
    lines.append(f"{len(checked)} packages checked, {len(found)} vulnerabilities known.")
    if skipped:
        names = ", ".join(skipped[:_SHOWN]) + (", ..." if len(skipped) > _SHOWN else "")
        lines.append(f"{len(skipped)} packages could NOT BE CHECKED: {names}.")
    return VULNERABLE if found else UNCHECKED if skipped else SOUND, lines


def audit(pinned: Path = PINNED) -> dict[str, Any] | None:
    """pip-audit's report on the pinned versions; None if it could not make one."""
    options = ["--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    command = [sys.executable, "-m", "pip_audit", *options, "--requirement", str(pinned)]
    answer = subprocess.run(command, capture_output=True, text=True)
    try:
        report: dict[str, Any] = json.loads(answer.stdout)
        return report
    except ValueError:
        reason = answer.stderr.strip().splitlines()
        print(*reason[-1:], sep="\n", file=sys.stderr)
        return None


if __name__ == "__main__":
    code, lines = verdict(audit())
    print(*lines, sep="\n")
    sys.exit(code)
