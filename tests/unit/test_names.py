"""Names: a class's stands for one thing in all rooms, and numbers say their unit."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("storage", "actors", "client", "spark_bridge", "cluster")
#: Two classes each, on purpose.
TWICE = {
    "Producer": "what a program sends with, and the actor of that title that producers share",
    "Corruption": "what storage finds, and what crosses to a client that has no storage",
    "Health": "a consumer's, in the public interface, and a store's disk's",
}


def sources(repository: Path) -> Iterator[tuple[str, str]]:
    for room in ROOMS:
        for path in sorted((repository / room).rglob("*.py")):
            yield str(path.relative_to(repository)), path.read_text(encoding="utf-8")


def test_a_class_name_stands_for_one_thing(repository: Path) -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path, source in sources(repository):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path)
    assert {name: paths for name, paths in found.items() if len(paths) > 1 and name not in TWICE} == {}


def test_seconds_are_written_out_and_bytes_are_no_octets(repository: Path) -> None:
    wrong = re.compile(r"\b\w+_[Ss]\b(?= *(?::[^=\n]*)?=)|octets?(?![.]h)", re.IGNORECASE)
    for path, source in sources(repository):
        assert [found[0] for found in wrong.finditer(source)] == [], path
