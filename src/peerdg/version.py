"""The version, in a place that everything may import."""

import hashlib
from functools import cache
from pathlib import Path

__version__ = "0.1.0.dev0"


@cache
def code_digest() -> str:
    """Hash the package's own source: between releases, other code has the same version."""
    root, whole = Path(__file__).parent, hashlib.sha256()
    for path in sorted(filter(Path.is_file, root.rglob("*.py"))):  # an editor's lock may be a link
        whole.update(path.relative_to(root).as_posix().encode())
        whole.update(path.read_bytes())
    return whole.hexdigest()[:16]
