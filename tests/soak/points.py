"""The crash points that stand in the sources, found by reading them, so that none can be forgotten."""

from __future__ import annotations

import ast
from pathlib import Path

import volfs

__all__ = ["points"]


def points() -> list[str]:
    """Every name in a call `crash.point("name")`; ValueError where the name is not written out."""
    found = set()
    for file in sorted(Path(volfs.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "crash.point":
                if len(node.args) != 1 or not isinstance(node.args[0], ast.Constant):
                    raise ValueError(f"{file.name}:{node.lineno}: a crash point without a literal name")
                found.add(str(node.args[0].value))
    return sorted(found)
