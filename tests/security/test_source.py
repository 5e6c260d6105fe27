"""No line of the package can execute the data it reads. Ruff checks eval, shells and pickle."""

import ast
from pathlib import Path

import peerdg

SOURCE = Path(peerdg.__file__).parent
BANNED = ("extractall", "unpack_archive", "extract_archive")  # they trust the paths of an archive
MODULES = ("pickle", "dill", "joblib", "marshal", "shelve", "yaml")


def dangers(source: str) -> list[str]:
    """List the constructs in `source` that could execute data."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None) or "", *(a.name for a in node.names)]
            found += [name for name in names if name.split(".")[0] in MODULES]
        elif isinstance(node, ast.Call):
            name, options = ast.unparse(node.func), [ast.unparse(k) for k in node.keywords]
            is_unsafe = name == "torch.load" and "weights_only=True" not in options
            is_unsafe |= "allow_pickle=True" in options or name.rpartition(".")[2] in BANNED
            is_unsafe |= name in ("eval", "exec", "compile", "__import__")
            found += [name] * is_unsafe
    return found


def test_no_file_of_the_package_can_execute_data():
    files = sorted(SOURCE.rglob("*.py"))
    found = {
        path.relative_to(SOURCE).as_posix(): dangers(path.read_text("utf-8")) for path in files
    }
    assert found.pop("methods/registry.py") == ["exec", "compile"]  # a plugin that the user names
    assert {name: names for name, names in found.items() if names} == {}


def test_the_scanner_finds_what_it_looks_for():
    for code in ("import pickle as p", "from dill import loads", "torch.load(path)", "eval(text)",
                 "torch.load(path, weights_only=False)", "np.load(path, allow_pickle=True)",
                 "tarfile.open(path).extractall(folder)"):  # fmt: skip
        assert dangers(code)
    assert not dangers("torch.load(path, weights_only=True); model.eval(); np.load(path)")
