"""Links of the documentation, its table of all studies, and modules with network access."""

import ast
import importlib.util
import re
from pathlib import Path

from markdown_it import MarkdownIt

import peerdg

ROOT = Path(__file__).parents[1]
SOURCE = Path(peerdg.__file__).parent


NETWORK = {
    "urlopen", "urlretrieve", "hf_hub_download", "snapshot_download", "create_connection",
    "load_state_dict_from_url", "download_url_to_file", "HTTPSConnection", "requests", "httpx",
    "aiohttp", "socket",
}  # fmt: skip


def reaches_the_network(source: str) -> bool:
    names = set()
    for node in ast.walk(ast.parse(source)):
        names |= {getattr(node, "id", ""), getattr(node, "attr", "")}
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
    return bool(names & NETWORK)


def test_only_initial_weights_are_downloaded():
    modules = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if reaches_the_network(path.read_text())
    }
    # A run's processes talk to each other, and `launch.py` looks for a free port on this machine.
    assert modules <= {"models/weights.py", "run/folder.py", "run/launch.py"}
    assert "gethostname" in (SOURCE / "run/folder.py").read_text()


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/**/*.md")]
PARSER = MarkdownIt("commonmark").enable("table")


def addresses(page: Path) -> list[str]:
    links = []
    for block in PARSER.parse(page.read_text()):
        for token in block.children or ():
            links += [token.attrs[key] for key in ("href", "src") if key in token.attrs]
    return [str(address) for address in links]


def anchors(page: Path) -> set[str]:
    """Anchors of all headings, as on GitHub."""
    parsed = PARSER.parse(page.read_text())
    texts = [parsed[n + 1].content for n, t in enumerate(parsed) if t.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


def test_every_link_inside_the_project_has_a_target():
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


def test_the_table_of_all_studies_matches_their_records():
    spec = importlib.util.spec_from_file_location("findings", ROOT / "results/findings.py")
    assert spec is not None and spec.loader is not None
    findings = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(findings)
    assert findings.main(["--check"]) == 0
