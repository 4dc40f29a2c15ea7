"""Test the names of classes, files and functions: unique, with units, in the words of the field."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("storage", "actors", "client", "spark_bridge", "cluster", "console")
#: Names that two classes have on purpose.
TWICE = {
    "Producer": "what a program sends with, and the actor of that title that producers share",
    "TopicConfig": "the settings of a topic as a broker stores them, and as `Admin.topic_config` returns them",
    "Corruption": "what storage finds, and what crosses to a client that has no storage",
}

#: File stems that several folders have.
STEMS_TWICE = {"__init__", "errors", "handlers", "service"}
#: Words that names must not contain; docs/glossary.md has the words to use.
REFUSED_WORDS = frozenset(
    {
        *("anew", "believe", "believes", "desk", "doors", "duties", "heard", "heed", "hears", "lived", "nobody"),
        *("office", "tale", "tells", "told", "veil", "veils", "wish"),
    }
)


def sources(repository: Path) -> Iterator[tuple[str, str]]:
    for folder in FOLDERS:
        for path in sorted((repository / folder).rglob("*.py")):
            yield str(path.relative_to(repository)), path.read_text(encoding="utf-8")


def test_class_names_are_unique(repository: Path) -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path, source in sources(repository):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path)
    assert {name: paths for name, paths in found.items() if len(paths) > 1 and name not in TWICE} == {}


def test_names_use_seconds_and_bytes(repository: Path) -> None:
    wrong = re.compile(r"\b\w+_[Ss]\b(?= *(?::[^=\n]*)?=)|octets?(?![.]h)", re.IGNORECASE)
    for path, source in sources(repository):
        assert [found[0] for found in wrong.finditer(source)] == [], path


def test_package_docstrings_list_every_file(repository: Path) -> None:
    """A docstring with "in the order to read it" describes every file of its package."""
    maps = 0
    for folder in FOLDERS:
        for page in (repository / folder).rglob("__init__.py"):
            docstring = ast.get_docstring(ast.parse(page.read_text(encoding="utf-8"))) or ""
            assert docstring, f"{page} says nothing"
            if "in the order to read it" not in docstring or page.parent.parent == repository:
                continue
            maps += 1
            files = {path.stem for path in page.parent.glob("*.py")} - {"__init__"}
            assert files <= set(re.findall(r"\w+", docstring)), page.parent.relative_to(repository)
    assert maps > 20


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+", name)}


def test_file_names_are_unique(repository: Path) -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path, _ in sources(repository):
        found[Path(path).stem].append(path)
    assert {stem: paths for stem, paths in found.items() if len(paths) > 1 and stem not in STEMS_TWICE} == {}


def test_names_use_the_words_of_the_field(repository: Path) -> None:
    wrong = []
    for path, source in sources(repository):
        kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
        names = [Path(path).stem, *(node.name for node in nodes)]
        wrong += [f"{path}: {name}" for name in names if REFUSED_WORDS & words_of(name)]
    assert wrong == []
