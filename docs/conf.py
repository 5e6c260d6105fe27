"""Configuration of the documentation site, which `make docs` builds.

The source folder is the whole project, so links such as `../results/README.md` lead to pages of the
site and also work on GitHub.
"""

import contextlib
import io
import json
import os
import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[1]
os.environ["COLUMNS"] = "100"  # width of the help pages

project = "peerdg"
author = "the peerdg authors"
project_copyright = "the peerdg authors, MIT license"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = [
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md",
    "docs/**.md", "results/**.md", "examples/README.md",
]  # fmt: skip
exclude_patterns = [".*", "build", "runs", "src", "tests", "benchmarks"]

html_theme = "furo"
html_title = "peerdg"
html_show_sourcelink = False
html_copy_source = False

myst_heading_anchors = 4
default_role = "code"  # docstrings put code in single backquotes
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False

EXAMPLE = re.compile(r"\]\((?:\.\./examples/|examples/)?(\w+)\.(py|ipynb)\)")


def adapt_links(app: Sphinx, page: str, source: list[str]) -> None:
    """Show the code of all examples below their list, and make links to an example lead there."""
    if page == "examples/README":
        for file in re.findall(r"^\| \[(.+?)\]", source[0], re.MULTILINE):
            source[0] += f"\n## {file}\n\n{code_of(ROOT / 'examples' / file)}\n"
    if page == "results/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\nstudies\n*/README\n*/*\n```\n"
    source[0] = EXAMPLE.sub(lambda link: f"](/examples/README.md#{link[1]}{link[2]})", source[0])


def code_of(file: Path) -> str:
    """Return a script, or the cells of a notebook, as Markdown."""
    if file.suffix == ".py":
        return f"```python\n{file.read_text('utf-8')}```"
    cells = json.loads(file.read_text("utf-8"))["cells"]
    texts = [("".join(cell["source"]), cell["cell_type"] == "code") for cell in cells]
    return "\n\n".join(
        f"```python\n{text}\n```" if code else re.sub("^#+", "###", text) for text, code in texts
    )


class CommandHelp(SphinxDirective):
    """Show the help page of every command."""

    def run(self) -> list[nodes.Node]:
        from peerdg.cli.main import COMMANDS

        return [self.section(name) for name in COMMANDS]

    def section(self, name: str) -> nodes.section:
        section = nodes.section(ids=[nodes.make_id(name)], names=[name])
        section += nodes.title("", f"peerdg {name}")
        section += nodes.literal_block("", help_of(name), language="text")
        self.state.document.note_explicit_target(section)
        return section


def help_of(name: str) -> str:
    """Return what `peerdg NAME --help` prints."""
    from peerdg.cli.main import run

    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = run([*name.split(), "--help"], debug=True)
    if code:
        raise RuntimeError(f"peerdg {name} --help ended with exit code {code}.")
    return "\n".join(line.rstrip() for line in output.getvalue().strip().splitlines())


def write_start_page(app: Sphinx, error: Exception | None) -> None:
    """Lead from the site's folder to its first page."""
    refresh = '<meta http-equiv="refresh" content="0; url=docs/index.html">'
    (Path(app.outdir) / "index.html").write_text(f"<!doctype html><title>peerdg</title>{refresh}")


def setup(app: Sphinx) -> None:
    app.add_directive("command-help", CommandHelp)
    app.connect("source-read", adapt_links)
    app.connect("build-finished", write_start_page)
