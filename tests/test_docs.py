"""Statements of the documentation that the code or the kept records decide."""

import ast
import csv
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import yaml
from markdown_it import MarkdownIt

import peerdg
from peerdg.report.runs import RunResult, as_of, load_runs
from peerdg.run.presets import preset

ROOT = Path(__file__).parents[1]
SOURCE = Path(peerdg.__file__).parent
PRESETS = sorted({p.stem for p in (SOURCE / "presets").glob("*.toml")} - {"base", "photos"})


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


def test_only_initial_weights_are_downloaded():
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if reaches_the_network(path.read_text())
    }
    assert found <= {"models/weights.py", "run/folder.py"}
    assert "gethostname" in (SOURCE / "run/folder.py").read_text()  # all it takes from socket
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
    return {run.path.name: run for run in load_runs(ROOT / "results" / folder)}


def test_the_digits_table_of_the_readme_is_that_of_its_study():
    methods = {
        "ERM": "erm", "RandAugment": "randaugment", "its EMA": "ema", "P-ENS": "p-ens",
        "PEER": "peer",
    }  # fmt: skip
    table, longer = study_table("digits"), rows_of_the_longer_run()
    last = longer["peer"].config["train"]["epochs"]
    targets = ("target svhn", "target mnist-m", "target usps", "target mean")
    rows = table_after("Digits, MNIST")
    assert list(rows) == list(methods)
    for name, method in methods.items():
        first = [over_seeds(table[method], column) for column in targets]
        first.append(f"{float(table[method]['fluctuation']):.2f}")
        run = longer.get(method)
        second = ["-"] * 2 if run is None else [
            f"{as_of(run, epoch).score(run.deployed):.1f}" for epoch in (100, last)
        ]  # fmt: skip
        assert rows[name] == first + second


def rows_of_the_longer_run() -> dict[str, RunResult]:
    runs = load_runs(ROOT / "results/digits-long")
    assert {run.seed for run in runs} == {1}
    return {run.row: run for run in runs}


def test_the_table_by_epoch_of_study_digits_is_that_of_its_records():
    """Of seed 1: last epoch, and the mean over the last five evaluations."""
    names = {
        "RandAugment": "randaugment", "EMA": "ema", "P-ENS": "p-ens", "SMA": "sma",
        "P-ENS, newest three": "p-ens-last3", "P-ENS, newest ten": "p-ens-last10",
        "PEER: task model": "peer", "PEER: proxy": "peer",
    }  # fmt: skip
    runs = rows_of_the_longer_run()
    text = (ROOT / "results/digits/README.md").read_text("utf-8")
    heading, _, *lines = text[text.index("| seed 1, last epoch (late) |") :].splitlines()[:10]
    epochs = [int(epoch) for epoch in re.findall(r"\| epoch (\d+)", heading)]
    assert epochs[0] == 100 and epochs[-1] == runs["peer"].config["train"]["epochs"]
    shown = {}
    for line in lines:
        label, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        shown[label] = cells
    assert shown.keys() == names.keys()
    for label, cells in shown.items():
        run = runs[names[label]]
        model = run.trained if label.endswith("proxy") else run.deployed
        series = {
            epoch: np.mean([
                r["accuracy"]
                for r in run.evaluations
                if (r["model"], r["epoch"]) == (model, epoch) and r["domain"] in run.targets
            ])
            for epoch in range(10, epochs[-1] + 1, 10)
        }  # fmt: skip
        expected = [
            f"{series[e]:.1f} ({np.mean([series[e - 10 * n] for n in range(5)]):.1f})"
            for e in epochs
        ]
        assert cells == expected, label


def study_table(name: str) -> dict[str, dict[str, str]]:
    """The rows of a study by method."""
    with (ROOT / "results" / name / "table.csv").open(encoding="utf-8") as file:
        return {row["method"]: row for row in csv.DictReader(file)}


def over_seeds(row: Mapping[str, str], column: str) -> str:
    """A mean, with its deviation if there are several seeds, as tables have it."""
    spread = f" ± {float(row[f'{column} std']):.1f}" if row[f"{column} std"] else ""
    return f"{float(row[column]):.1f}{spread}"


def test_the_pacs_table_of_the_readme_is_the_kept_records():
    methods = {"ERM": "erm-0", "RandAugment": "randaugment-0", "PEER": "peer-0"}
    runs, rows = kept("pacs"), table_after("PACS, photo to")
    assert list(rows) == list(methods)
    for name, run in ((name, runs[method]) for name, method in methods.items()):
        final = run.final(run.deployed)
        assert rows[name][:2] == [f"{final[d]:.1f}" for d in ("art_painting", "sketch")]
        shown = [float(number) for number in re.findall(r"\d+\.\d+", rows[name][-1])]
        models = [run.trained] if run.trained == run.deployed else [run.trained, run.deployed]
        measured = [run.fluctuation(m, burn_in_periods=0).mean.var for m in models]
        assert shown == [round(value, 1) for value in measured]


PAGES = sorted(
    path
    for path in (
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "results").rglob("*.md"),
    )
)
PARSER = MarkdownIt("commonmark").enable("table")


def addresses(page: Path) -> list[str]:
    found = []
    for block in PARSER.parse(page.read_text()):
        for token in block.children or ():
            found += [token.attrs[key] for key in ("href", "src") if key in token.attrs]
    return [str(address) for address in found]


def anchors(page: Path) -> set[str]:
    """Of each heading, as GitHub makes them."""
    parsed = PARSER.parse(page.read_text())
    texts = [parsed[n + 1].content for n, t in enumerate(parsed) if t.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


def test_every_link_inside_the_project_leads_somewhere():
    broken = []
    for page in PAGES:
        for address in addresses(page):
            if re.match(r"\w+://|mailto:", address):
                continue
            file, _, anchor = address.partition("#")
            target = (page.parent / file).resolve() if file else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {address}")
    assert broken == []


TITLE = "PEER pressure: Model-to-Model Regularization for Single Source Domain Generalization"
PAPER = "https://arxiv.org/abs/2505.12745"


def test_the_citation_file_is_complete_and_agrees_with_the_readme():
    """What the schema of the Citation File Format 1.2.0 requires, and the project's own facts."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["title"] == "peerdg"
    assert citation["version"] == peerdg.__version__
    assert citation["license"] == "MIT"
    assert all("name" in author for author in citation["authors"])
    paper = citation["preferred-citation"]
    assert (paper["title"], paper["year"], paper["url"]) == (TITLE, 2025, PAPER)
    names = [f"{a['family-names']}, {a['given-names']}" for a in paper["authors"]]
    assert names == ["Cho, Dong Kyu", "Hwang, Inwoo", "Lee, Sanghack"]
    bibtex = (ROOT / "README.md").read_text().partition("```bibtex")[2].partition("```")[0]
    assert " and ".join(names) in bibtex and PAPER in bibtex


INTERVAL = re.compile(
    r"[+-]\d+\.\d \[[+-]\d+\.\d, [+-]\d+\.\d\](?: \*)?|×\d\.\d\d \[\d\.\d\d, \d+\.\d\d\](?: \*)?"
)
CONCLUSIONS = [ROOT / "docs/findings.md", *(ROOT / "results").glob("*/README.md")]


@pytest.mark.parametrize("page", CONCLUSIONS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_interval_of_a_conclusion_is_in_a_report(page: Path):
    """With its star, if it has one: no number of a page of conclusions is typed from memory."""
    reports = [path.read_text("utf-8") for path in (ROOT / "results").glob("*/report.md")]
    cells = {cell.strip() for text in reports for cell in text.replace("\\", "").split("|")}
    stated = INTERVAL.findall(" ".join(page.read_text("utf-8").split()))
    assert [found for found in stated if found not in cells] == []


@pytest.mark.parametrize(
    ("study", "methods"),
    [
        ("mini", ["erm", "randaugment", "peer-latest", "p-ens", "peer"]),
        ("digits", ["erm", "randaugment", "peer-latest", "p-ens", "peer"]),
        ("photos", ["erm", "randaugment", "peer-latest", "p-ens", "peer"]),
    ],
)
def test_the_tables_of_parts_in_the_findings_are_those_of_the_studies(study, methods):
    rows = study_table(study)
    text = (ROOT / "docs/findings.md").read_text("utf-8")
    text = text[text.index("## What each part is worth") :]
    text = text[text.lower().index(f"study *{study}*") :]
    parts = text.partition("| | target mean | variance |")[2].splitlines()[2:7]
    for line, row in zip(parts, (rows[name] for name in methods), strict=True):
        moved = float(row["fluctuation"])
        assert line.endswith(f"| {over_seeds(row, 'target mean')} | {moved:.2f} |")


def test_the_table_over_all_studies_is_what_their_records_say():
    spec = importlib.util.spec_from_file_location("findings", ROOT / "results/findings.py")
    assert spec is not None and spec.loader is not None
    findings = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(findings)
    assert findings.main(["--check"]) == 0


def test_the_means_over_the_last_evaluations_of_study_photos_are_those_of_its_records():
    names = {
        "ERM": "erm", "RandAugment": "randaugment", "P-ENS": "p-ens", "SMA": "sma", "EMA": "ema",
        "P-ENS, newest four": "p-ens-last4", "PEER: task model": "peer", "PEER: proxy": "peer",
        "regulariser without averaging": "peer-latest",
    }  # fmt: skip
    runs = load_runs(ROOT / "results/photos")

    def late(run: RunResult, model: str) -> float:
        values = [
            r["accuracy"]
            for r in run.evaluations
            if r["model"] == model and r["epoch"] >= 40 and r["domain"] in run.targets
        ]
        assert len(values) == 5 * 2
        return float(np.mean(values))

    text = (ROOT / "results/photos/README.md").read_text("utf-8")
    lines = text[text.index("| epochs 40 to 60 |") :].splitlines()[2:11]
    for line in lines:
        label, mean, seeds = (cell.strip() for cell in line.strip("|").split("|"))
        own = sorted((r for r in runs if r.row == names[label]), key=lambda run: run.seed)
        values = [late(r, r.trained if label.endswith("proxy") else r.deployed) for r in own]
        assert len(values) == 3
        assert seeds == ", ".join(f"{value:.1f}" for value in values), label
        assert mean == f"{np.mean(values):.1f}", label
