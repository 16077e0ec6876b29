"""Rules of the house that no tool checks: sizes, docstrings, exports, layers, versions."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import volfs_client

import volfs

_ROOT = Path(__file__).resolve().parents[1]
_SOURCES = sorted(path for top in ("volfs", "client/src", "tests") for path in (_ROOT / top).rglob("*.py"))
_MODULES = sorted(
    name
    for package in (volfs, volfs_client)
    for _, name, _ in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if name != "volfs.__main__"
)


def _id(path: Path) -> str:
    return str(path.relative_to(_ROOT))


@pytest.mark.parametrize("path", _SOURCES, ids=_id)
def test_files_are_short(path: Path) -> None:
    """No file is longer than 400 lines."""
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize("path", [path for path in _SOURCES if path.stat().st_size], ids=_id)
def test_modules_and_tests_are_described(path: Path) -> None:
    """Every module says what it owns, every test what it shows."""
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "the module has no docstring"
    silent = [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and path.name.startswith("test_")
        and not ast.get_docstring(node)
    ]
    assert silent == []


@pytest.mark.parametrize("name", _MODULES)
def test_exports_are_declared(name: str) -> None:
    """Each module with code says in `__all__` what is public, and has all of it."""
    module = importlib.import_module(name)
    assert module.__file__ is not None
    if Path(module.__file__).read_text().strip():
        exported = module.__all__
        assert sorted(set(exported)) == sorted(exported)
        assert [one for one in exported if not hasattr(module, one)] == []


def test_no_module_is_called_after_nothing() -> None:
    """Names are nouns of the domain: no utils, helpers, common or managers."""
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
    assert [path for path in _SOURCES if path.stem.lstrip("_") in vague] == []
    classes = [
        node.name for path in _SOURCES for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and node.name.endswith("Manager")
    ]  # fmt: skip
    # The name that users of training libraries look for.
    assert classes == ["CheckpointManager"]


def test_imports_point_down_only() -> None:
    """The layers of DESIGN hold, every module is in one of them, and only kernel/ knows pyfuse3."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_both_distributions_have_one_version() -> None:
    """Daemon and client are released together."""
    assert volfs_client.__version__ == volfs.__version__


def test_the_client_depends_on_nothing() -> None:
    """The client's distribution declares no dependencies."""
    with (_ROOT / "client/pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["dependencies"] == []


def test_readme_and_command_line_agree() -> None:
    """Each option of `volfs mount` has its row in README.md."""
    from volfs.cli.mount import mount

    text = (_ROOT / "README.md").read_text()
    options = [option.opts[0] for option in mount.params if option.opts[0].startswith("--")]
    assert [option for option in options if f"`{option}" not in text and option != "--ready-fd"] == []
