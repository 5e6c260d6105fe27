"""Code outside `methods/` does not name methods. It reads metadata or the run's records."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from peerdg.averages.average_options import KINDS
from peerdg.methods.recipes import COMBINATIONS, RECIPES
from peerdg.methods.registry import method_names

SOURCE = Path(__file__).parents[1] / "src/peerdg"
NAMES = {*method_names(), *RECIPES, *COMBINATIONS} - {*KINDS}  # averages have their own names

AUGMENTATION = "an augmentation is meant here, not the method that trains on it"
KINDS_OF_AUGMENTATION = {"randaugment", "randconv", "pro-randconv", "augmix", "l2d", "pden"}
# Allowed names and the reasons. Remove a reason that no longer holds.
ALLOWED = {
    "analyze/otdd.py": ({"randaugment"}, AUGMENTATION),
    "cli/analyze.py": ({"randaugment"}, AUGMENTATION),
    "augment/policy.py": ({"randaugment"}, AUGMENTATION),
    "augment/randaugment.py": ({"randaugment"}, AUGMENTATION),
    "augment/augmix.py": ({"augmix"}, AUGMENTATION),
    "augment/randconv.py": ({"randconv"}, AUGMENTATION),
    "augment/augment_options.py": (KINDS_OF_AUGMENTATION, AUGMENTATION),
    "crafted/__init__.py": ({"randaugment"}, AUGMENTATION),
    "_exports.py": ({"erm", "randaugment", "peer"}, "public names, for loops of one's own"),
    "cli/demo.py": ({"erm", "randaugment", "peer", "p-ens"}, "the demo's list"),
    "data/benchmarks.py": ({"peer"}, "cites the paper for a licence"),
    "cli/main.py": ({"peer"}, "the paper's title"),
    "integrations/lightning.py": ({"peer"}, "an adapter of this method's loss"),
    "integrations/sklearn.py": ({"peer"}, "the estimator's default method"),
    "paper/catalogue.py": ({"erm", "oracle-erm", "teacher"}, "the oracle that guides a teacher"),
    "paper/figures.py": ({"peer", "randaugment", "teacher"}, "schematics of the paper"),
    "paper/run.py": ({"peer"}, "the paper's title"),
    "report/pages.py": ({"peer"}, "the paper's title"),
    "run/prepare.py": ({"erm"}, "pre-training is ERM, whatever the method"),
    "run/config.py": ({"peer", "randaugment"}, "the default method; RandAugment's families"),
}


def modules() -> list[str]:
    paths = (path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))
    return sorted(path for path in paths if not path.startswith("methods/"))


def texts(tree: ast.Module) -> Iterator[str]:
    """Identifiers, parts of imported names, and strings that are not documentation."""
    # A string statement documents a module, class or function, or the constant above it.
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in documentation:
                yield node.value
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            if isinstance(value := getattr(node, field, None), str):
                yield value.replace("_", " ")


def named(text: str) -> set[str]:
    """Methods that a text names as a separate word, in any spelling."""
    return {
        name
        for name in NAMES
        if re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])", text.lower())
    }


def names_in(source: str) -> set[str]:
    return named("\n".join(texts(ast.parse(source))))


def test_modules_name_methods_only_where_allowed():
    named_in = {module: names_in((SOURCE / module).read_text("utf-8")) for module in modules()}
    allowed = {module: names for module, (names, _) in ALLOWED.items()}
    assert {module: names for module, names in named_in.items() if names} == allowed


def test_the_search_finds_names_only():
    for line in ('config.method == "peer"', 'f"lower {w} (--peer.w)"', "def peer_notes(): pass"):
        assert names_in(line)
    text = '"""About PEER."""\nimport peerdg\nterm = "permanent"\nimport peerdg.errors\n'
    assert names_in(text) == set()
