"""docs/internals/architecture.md names files: each of them exists, and each room of the house is named."""

from __future__ import annotations

import re
from pathlib import Path

FILE = re.compile(r"`((?:storage|actors|client|cluster|spark_bridge|demo|tests)/[\w/]+\.\w+)`")


def test_every_file_that_the_page_names_exists(repository: Path) -> None:
    named = FILE.findall((repository / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8"))
    assert len(named) > 60, "the pattern finds the names"
    assert [name for name in named if not (repository / name).is_file()] == []


def test_every_room_is_in_the_table(repository: Path) -> None:
    """Those of a task each are told in the row of the room that they are in."""
    page = (repository / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")
    rooms = {path.parent.relative_to(repository) for path in repository.glob("storage/**/__init__.py")}
    for depth in ("actors/*", "actors/broker/*", "actors/keeper/*"):
        rooms |= {path.parent.relative_to(repository) for path in repository.glob(f"{depth}/__init__.py")}
    assert len(rooms) > 20
    assert [str(room) for room in sorted(rooms) if f"`{room}/`" not in page] == []
    within = {
        path.parent for room in ("actors/broker/core", "client") for path in repository.glob(f"{room}/*/__init__.py")
    }
    assert len(within) > 12
    assert [str(room) for room in sorted(within) if f"`{room.name}`" not in page] == []
