"""Nothing outside `methods/` knows a method by name: it reads metadata or the run's records."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from peerdg.averages.average_options import KINDS
from peerdg.methods.recipes import COMBINATIONS, RECIPES
from peerdg.methods.registry import method_names

SOURCE = Path(__file__).parents[1] / "src/peerdg"
NAMES = {*method_names(), *RECIPES, *COMBINATIONS} - {*KINDS}  # averages have names of their own

AUGMENTATION = "an augmentation is meant here, not the method that trains on it"
KINDS_OF_AUGMENTATION = {"randaugment", "randconv", "pro-randconv", "augmix", "l2d", "pden"}
# Where a name may stand, and why. A reason that no longer holds must go, too.
ALLOWED = {
    "augment/policy.py": ({"randaugment"}, AUGMENTATION),
    "augment/randaugment.py": ({"randaugment"}, AUGMENTATION),
    "augment/augmix.py": ({"augmix"}, AUGMENTATION),
    "augment/randconv.py": ({"randconv"}, AUGMENTATION),
    "augment/augment_options.py": (KINDS_OF_AUGMENTATION, AUGMENTATION),
    "crafted/__init__.py": ({"randaugment"}, AUGMENTATION),
    "_exports.py": ({"erm", "randaugment", "peer"}, "public names, for loops of one's own"),
    "cli/demo.py": ({"erm", "randaugment", "peer", "p-ens"}, "the demo's list"),
    "data/benchmarks.py": ({"peer"}, "cites the paper for a licence"),
    "run/prepare.py": ({"erm"}, "pre-training is ERM, whatever the method"),
    "run/config.py": ({"peer", "randaugment"}, "the default method; RandAugment's families"),
}


def modules() -> list[str]:
    found = (path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))
    return sorted(path for path in found if not path.startswith("methods/"))


def texts(tree: ast.Module) -> Iterator[str]:
    """Every identifier, every part of an imported name, and every string that is no docstring."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body
        if isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in docstrings:
                yield node.value
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            if isinstance(value := getattr(node, field, None), str):
                yield value.replace("_", " ")


def named(text: str) -> set[str]:
    """The methods that a text names as a word of its own, in any spelling."""
    return {
        name
        for name in NAMES
        if re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])", text.lower())
    }


def names_in(source: str) -> set[str]:
    # A string of its own below a constant is its documentation.
    tree = ast.parse(re.sub(r'^"""(?:.|\n)*?"""$', "", source, flags=re.MULTILINE))
    return set().union(*map(named, texts(tree)))


def test_a_module_names_no_method_but_for_a_reason():
    named_in = {module: names_in((SOURCE / module).read_text("utf-8")) for module in modules()}
    allowed = {module: names for module, (names, _) in ALLOWED.items()}
    assert {module: names for module, names in named_in.items() if names} == allowed


def test_the_search_finds_names_and_no_other_words():
    for line in ('config.method == "peer"', 'f"lower {w} (--peer.w)"', "def peer_notes(): pass"):
        assert names_in(line)
    text = '"""About PEER."""\nimport peerdg\nterm = "permanent"\nimport peerdg.errors\n'
    assert names_in(text) == set()
