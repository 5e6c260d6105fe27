import ast
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(p.parent for p in (ROOT / "src/peerdg").rglob("__init__.py"))


@pytest.fixture
def at_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)


def test_imports_go_one_way(at_root, capsys, tmp_path):
    code = lint_imports(cache_dir=str(tmp_path))
    assert code == 0, capsys.readouterr().out


def test_the_rule_notices_a_wrong_direction(at_root, capsys, tmp_path):
    rules = (ROOT / "pyproject.toml").read_text()
    wrong = rules.replace('  "train",\n', "").replace('  "models",\n', '  "models",\n  "train",\n')
    config = tmp_path / "pyproject.toml"
    config.write_text(wrong)
    assert lint_imports(config_filename=str(config), cache_dir=str(tmp_path)) == 1
    assert "train is not allowed to import peerdg.methods" in capsys.readouterr().out


def test_every_package_has_a_docstring():
    texts = {package.name: (package / "__init__.py").read_text() for package in PACKAGES}
    assert [name for name, text in texts.items() if not ast.get_docstring(ast.parse(text))] == []
