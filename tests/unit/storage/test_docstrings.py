"""Test that every public name of the store has a docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def undocumented(node: ast.AST, name: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.ClassDef) or child.name.startswith("_"):
            continue
        if not ast.get_docstring(child):
            yield f"{name}.{child.name}"
        if isinstance(child, ast.ClassDef):
            yield from undocumented(child, f"{name}.{child.name}")


def test_every_public_name_has_a_docstring(repository: Path) -> None:
    missing: list[str] = []
    for path in sorted((repository / "storage").glob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        missing += [] if ast.get_docstring(tree) else [path.stem]
        missing += undocumented(tree, path.stem)
    assert missing == []


def test_missing_docstrings_are_found() -> None:
    source = "class A:\n    def f(self): ...\n    def _g(self): ...\ndef h(): 'said'"
    assert list(undocumented(ast.parse(source), "m")) == ["m.A", "m.A.f"]
