import re
import tomllib
from pathlib import Path

from tests.audit import PINNED, SOUND, UNCHECKED, VULNERABLE, verdict

ROOT = Path(__file__).parents[1]


def clean(name: str) -> dict[str, object]:
    return {"name": name, "version": "1.0", "vulns": []}


def skipped(name: str) -> dict[str, object]:
    """Output of pip-audit if the database does not respond. Its exit code is still 0."""
    return {"name": name, "skip_reason": f"Dependency not found and could not be audited: {name}"}


VULNERABILITY = {"id": "CVE-2025-0001", "fix_versions": ["1.1"], "aliases": [], "description": ""}


def test_a_report_passes_only_if_all_packages_are_checked_and_safe():
    bad = {"name": "pillow", "version": "1.0", "vulns": [VULNERABILITY]}
    for packages, code in (
        ([clean("a"), clean("b")], SOUND),
        ([clean("a"), bad], VULNERABLE),
        ([clean("a"), skipped("b")], UNCHECKED),
        ([skipped("a"), skipped("b")], UNCHECKED),
        ([], UNCHECKED),
    ):
        assert verdict({"dependencies": packages})[0] == code
    assert verdict(None)[0] == UNCHECKED


def release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# First release of each package without a known vulnerability at the time of writing.
FIRST_SOUND = {"torch": "2.13", "pillow": "13", "filelock": "4.2.1",
               "onnx": "1.23", "pyarrow": "23.0.1"}  # fmt: skip


def requirements() -> dict[str, tuple[int, ...]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = [*project["dependencies"], *(line for lines in extras.values() for line in lines)]
    floors = {}
    for line in named:
        if match := re.fullmatch(r"([\w.-]+)>=([\d.]+)", line):
            floors[normal(match[1])] = release(match[2])
    return floors


def test_minimum_versions_have_no_published_vulnerability():
    floors = requirements()
    assert [name for name in FIRST_SOUND if floors[name] < release(FIRST_SOUND[name])] == []


def test_pinned_versions_and_minimum_versions_agree():
    lines = [line for line in PINNED.read_text().splitlines() if line and line[0] != "#"]
    pinned = {normal(line.split("==")[0]): release(line.split("==")[1]) for line in lines}
    assert len(pinned) == len(lines)
    for name, floor in requirements().items():
        assert name in pinned, name
        assert pinned[name] >= floor, name
