"""Statements of the documentation that the code or the kept records decide."""

import ast
import re
from pathlib import Path

import pytest

import peerdg
from peerdg.report.runs import RunResult, load_runs
from peerdg.train.presets import BUDGETS, preset

ROOT = Path(__file__).parents[1]
SOURCE = Path(peerdg.__file__).parent
PRESETS = sorted(path.stem for path in (SOURCE / "presets").glob("*.toml"))


def test_the_card_of_peer_names_the_w_of_every_preset():
    text = " ".join((ROOT / "docs/methods/peer.md").read_text().split())
    said = text[text.index("`quick` presets use") : text.index("Of these,")]
    named = {
        name: float(w)
        for w, names in re.findall(r"([\d.]+) with [^(]*\(([^)]*)\)", said)
        for name in re.findall(r"`([\w-]+)`", names)
    }
    assert named == {name: preset(name, "quick")["peer"]["w"] for name in PRESETS}
    assert "`standard` and `paper` use 2." in text
    others = {preset(n, b)["peer"]["w"] for n in PRESETS for b in BUDGETS if b != "quick"}
    assert others == {2.0}


def reaches_the_network(source: str) -> bool:
    names = {n.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name)}
    names |= {n.attr for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Attribute)}
    imported = {
        alias.name.partition(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    calls = {"urlopen", "urlretrieve", "hf_hub_download", "snapshot_download", "create_connection",
             "load_state_dict_from_url", "download_url_to_file", "HTTPSConnection"}  # fmt: skip
    return bool(names & calls or imported & {"requests", "httpx", "aiohttp", "socket"})


def test_only_initial_weights_are_downloaded_as_the_security_page_says():
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if reaches_the_network(path.read_text())
    }
    assert found <= {"models/download.py", "models/timm_models.py", "train/rundir.py"}
    assert "gethostname" in (SOURCE / "train/rundir.py").read_text()  # all it takes from socket
    page = (ROOT / "SECURITY.md").read_text()
    assert "Nothing is downloaded but initial weights" in page
    photos = {n for n in PRESETS if preset(n, "quick").get("weights") == "imagenet"}
    assert photos == {"pacs", "office-home", "vlcs", "terra", "own-photos"}


def table_after(heading: str) -> dict[str, list[str]]:
    """Rows of the first table after a line of README that begins so, by their first cell."""
    text = (ROOT / "README.md").read_text()
    lines = iter(text[text.index(heading) :].splitlines())
    table = []
    for line in lines:
        if line.startswith("|"):
            table.append([cell.strip() for cell in line.strip("|").split("|")])
        elif table:
            break
    return {row[0]: row[1:] for row in table[2:]}


def kept(folder: str) -> dict[str, RunResult]:
    return {run.path.name: run for run in load_runs(ROOT / "results" / folder / "runs.json")}


README_RUNS = {"ERM": "erm-0", "RandAugment": "randaugment-0", "PEER": "peer-0"}


@pytest.mark.parametrize(
    ("heading", "folder", "domains", "burn_in", "w"),
    [
        ("Digits, MNIST", "digits", ("mnist-m", "usps"), 5, 2.0),
        ("PACS, photo to", "pacs", ("art_painting", "sketch"), 0, 0.001),
    ],
)
def test_the_tables_of_the_readme_are_the_kept_records(heading, folder, domains, burn_in, w):
    runs, rows = kept(folder), table_after(heading)
    text = " ".join((ROOT / "README.md").read_text().split())
    caption = text[text.index(heading) :].partition(": |")[0]
    assert f"PEER with w {w:g}" in caption
    assert runs["peer-0"].config["peer"]["w"] == w
    assert "one seed" in caption
    for name, run in ((name, runs[kept_as]) for name, kept_as in README_RUNS.items()):
        final = run.final(run.deployed)
        assert rows[name][: len(domains)] == [f"{final[d]:.1f}" for d in domains]
        shown = [float(number) for number in re.findall(r"\d+\.\d+", rows[name][-1])]
        models = [run.trained] if run.trained == run.deployed else [run.trained, run.deployed]
        measured = [run.fluctuation(m, burn_in_periods=burn_in).mean.var for m in models]
        digits = len(re.search(r"\.(\d+)", rows[name][-1])[1])
        assert shown == [round(value, digits) for value in measured]
