"""Check the English of docstrings, comments and docs: `python -m tests.prose`.

Prints each place that uses a word or a construction that readers stumble over, and exits with 1 if
there are more of a kind per 10,000 words than allowed. CONTRIBUTING.md says how to write instead.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
RULES = {  # name: (pattern, occurrences allowed per 10,000 words)
    "semicolon": (r";", 20.0),
    "'what ...' as a noun": (r"\bwhat (it|is|are|a|the)\b", 4.0),
    "entry of Args without a noun": (r"^\s*\w+: (Of|What|That|Those|Which) ", 0.0),
    "of its own": (r"\bof (its|their|one's) own\b", 0.0),
    "private word": (
        r"\b(anew|in place of|go(es)? on|likewise|told apart|so many|held back|beside|learnt)\b",
        2.0,
    ),
    "British spelling": (
        r"\b\w*(normalis|regularis|generalis|initialis|optimis)\w*|\b(colour|grey|behaviour)\w*",
        0.0,
    ),
}


def texts() -> Iterator[tuple[str, int, str]]:
    """Yield each text with its file and line."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        name, source = str(path.relative_to(ROOT)), path.read_text("utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body:
                first = node.body[0]
                if isinstance(first, ast.Expr) and (docstring := ast.get_docstring(node)):
                    yield name, first.lineno, docstring
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT and not token.string.startswith("# noqa"):
                yield name, token.start[0], token.string.lstrip("# ")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        code = re.compile(r"```.*?```|`[^`\n]*`|<!--.*?-->", re.DOTALL)
        text = code.sub(lambda found: "\n" * found[0].count("\n"), path.read_text("utf-8"))
        yield str(path.relative_to(ROOT)), 1, text


def main() -> int:
    """Print what is above its limit, and return the exit code."""
    found = list(texts())
    words = sum(len(text.split()) for _, _, text in found)
    failed = False
    for rule, (pattern, limit) in RULES.items():
        matches = [
            (file, line + text.count("\n", 0, match.start()), match[0].strip())
            for file, line, text in found
            for match in re.finditer(pattern, text, re.IGNORECASE | re.MULTILINE)
        ]
        rate = 1e4 * len(matches) / words
        print(f"{rule}: {rate:.1f} per 10,000 words (at most {limit:g})")
        if rate > limit:
            failed = True
            for file, line, text in matches:
                print(f"  {file}:{line}: {text}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
