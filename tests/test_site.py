"""The documentation site is built without a warning, and its links and commands are right."""

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
from contextlib import nullcontext
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from cyclopts import CycloptsError

import peerdg
from peerdg.cli.main import COMMANDS, make_app
from peerdg.errors import PeerdgError
from peerdg.run.config import plugin_method
from tests.test_add_a_method import PAGE as ADD_A_METHOD
from tests.test_docs import PAGES, PARSER, ROOT
from tests.test_readme import blocks as python_block

DOCS = [page for page in PAGES if "results" not in page.parts]


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(file.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("furo")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-P", "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs"]
    result = subprocess.run(
        [*build, "-d", str(folder / "doctrees"), ".", str(folder / "html")],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},  # a new interpreter, also in quick tests
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return folder / "html"


@pytest.mark.slow
def test_every_link_in_the_site_leads_somewhere(site: Path):
    pages = {file: Page(file) for file in site.rglob("*.html")}
    broken = []
    for file, page in pages.items():
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (file.parent / unquote(url.path)).resolve() if url.path else file
            known = pages[target].anchors if target in pages else set()
            if not target.is_file() or (url.fragment and unquote(url.fragment) not in known):
                broken.append(f"{file.relative_to(site)}: {link}")
    assert broken == []


@pytest.mark.slow
def test_the_site_has_all_pages_commands_and_examples(site: Path):
    for page in DOCS:
        assert (site / page.relative_to(ROOT)).with_suffix(".html").is_file()
    help_pages = Page(site / "docs/reference/cli.html").anchors
    assert {name.replace(" ", "-") for name in COMMANDS} <= help_pages
    examples = Page(site / "examples/README.html").anchors
    files = [path for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".ipynb")]
    assert {re.sub("[._]", "-", path.name) for path in files} <= examples


def test_every_page_is_in_the_index():
    index = (ROOT / "docs/index.md").read_text("utf-8")
    entries = re.findall(r"^(?:.*<)?([\w./*-]+)>?$", index, re.MULTILINE)
    listed = {page for entry in entries for page in (ROOT / "docs").glob(f"{entry}.md")}
    assert {page for page in DOCS if "docs" in page.parts} - listed == {ROOT / "docs/index.md"}


def test_all_public_names_are_on_the_reference_page():
    text = (ROOT / "docs/reference/python.md").read_text("utf-8")
    listed = set(
        re.findall(r"auto(?:class|exception|function):: peerdg\.(\w+)$", text, re.MULTILINE)
    )
    assert listed == set(dir(peerdg)) - {"__version__", "torchvision"}


def blocks(*languages: str) -> list[tuple[str, str]]:
    """All code blocks of the documentation in these languages, each with its page."""
    return [
        (str(page.relative_to(ROOT)), token.content)
        for page in DOCS
        for token in PARSER.parse(page.read_text("utf-8"))
        if token.type in ("fence", "code_block") and token.info.strip() in languages
    ]


def commands() -> list[tuple[str, str]]:
    found = []
    for page, text in blocks("", "bash", "console"):
        for line in text.replace("\\\n", " ").splitlines():
            if line.startswith("peerdg "):
                found.append((page, line))
    return found


def test_every_documented_command_has_valid_options(tmp_path: Path):
    """Parse each command without running it, because most of them need data."""
    plugin = tmp_path / "agree.py"
    plugin.write_text(python_block("executed by tests/test_add_a_method.py", page=ADD_A_METHOD))
    failed = []
    for page, line in commands():
        if "--sbatch " in line:
            continue  # a value that starts with -- must follow an equals sign: --sbatch="--time 4"
        _, *arguments = shlex.split(line, comments=True)
        try:
            with plugin_method(plugin) if "agree.py" in arguments else nullcontext():
                app = make_app(arguments)
                app.parse_args(arguments, exit_on_error=False, print_error=False)
        except (PeerdgError, CycloptsError) as error:
            failed.append(f"{page}: {line}\n    {error}")
    assert commands()
    assert failed == []


def test_python_blocks_are_valid_and_import_existing_names():
    for page, text in blocks("python"):
        for node in ast.walk(ast.parse(text, filename=page)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("peerdg"):
                module = importlib.import_module(node.module)
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{page}: {alias.name}"
