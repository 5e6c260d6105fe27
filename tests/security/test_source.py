"""No line of the package can execute what it reads."""

import ast
from pathlib import Path

import peerdg

SOURCE = Path(peerdg.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
# Modules that execute, or are built on what executes, the content of a file.
BANNED_MODULES = {
    "pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml",
    "torch.distributed.checkpoint", "torch.package",
}  # fmt: skip
BANNED_CALLS = {"eval", "exec", "compile", "__import__"}
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}


def dangers(source: str) -> list[str]:
    """Every construct in `source` that could execute data, with its line."""
    return [
        f"line {node.lineno}: {problem}"  # type: ignore[attr-defined]
        for node in ast.walk(ast.parse(source))
        for problem in _problems(node)
    ]


def _problems(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [f"import {a.name}" for a in node.names if _is_banned(a.name)]
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        names = [f"{module}.{a.name}" for a in node.names]
        return [f"from {module}" for name in (module, *names) if _is_banned(name)][:1]
    if isinstance(node, ast.Call):
        return _call_problems(node)
    return []


def _call_problems(node: ast.Call) -> list[str]:
    name = ast.unparse(node.func)
    last = name.rpartition(".")[2]
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    found = []
    if name.removeprefix("builtins.") in BANNED_CALLS:
        found.append(f"{name}()")
    if name in SHELLS or _is_true(given.get("shell")):
        found.append(f"{name}() through a shell")
    if name == "torch.load" and not _is_true(given.get("weights_only")):
        found.append("torch.load without weights_only=True")
    if _is_true(given.get("allow_pickle")):
        found.append(f"{name}(allow_pickle=True)")
    if last == "import_module" and node.args and _is_banned(_text(node.args[0])):
        found.append(f"imports {_text(node.args[0])}")
    if last in ("extractall", "unpack_archive", "extract_archive"):
        found.append(f"{name}() trusts an archive's paths")
    return found


def _is_banned(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in BANNED_MODULES)


def _is_true(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def _text(value: ast.expr) -> str:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def test_no_file_of_the_package_can_execute_data():
    found = {str(path.relative_to(SOURCE)): dangers(path.read_text("utf-8")) for path in FILES}
    # A plugin is code that the user names.
    plugin = found.pop("methods/registry.py")
    assert [line.partition(": ")[2] for line in plugin] == ["exec()", "compile()"]
    assert {name: lines for name, lines in found.items() if lines} == {}


DANGEROUS = [
    "import pickle",
    "import pickle as p",
    "from pickle import loads",
    "def f():\n    import dill",
    "import torch.distributed.checkpoint as dcp",
    "from torch.distributed import checkpoint",
    "importlib.import_module('pickle')",
    "torch.load(path)",
    "torch.load(path, weights_only=False)",
    "torch.load(path, weights_only=safe)",
    "eval(text)",
    "builtins.eval(text)",
    "__import__(name)",
    "subprocess.run(command, shell=True)",
    "os.system(command)",
    "np.load(path, allow_pickle=True)",
    "tarfile.open(path).extractall(folder)",
]
HARMLESS = [
    "torch.load(path, weights_only=True)",
    "model.eval()",
    "subprocess.run([command])",
    "np.load(path)",
    "re.compile(pattern)",
]


def test_the_scanner_finds_what_it_looks_for_and_nothing_else():
    assert [snippet for snippet in DANGEROUS if not dangers(snippet)] == []
    assert [snippet for snippet in HARMLESS if dangers(snippet)] == []
    assert SOURCE / "models" / "stored.py" in FILES


def test_torch_load_is_used_in_one_place_only():
    users = [
        path.relative_to(SOURCE).as_posix()
        for path in FILES
        if any(
            isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
        )
    ]
    assert users == ["models/weights.py"]
