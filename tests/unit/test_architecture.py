"""Test that docs/internals/architecture.md names only existing files, and every package."""

from __future__ import annotations

import re
from pathlib import Path

FILE = re.compile(r"`((?:storage|actors|client|cluster|spark_bridge|console|demo|tests)/[\w/]+\.\w+)`")


def test_architecture_page_names_existing_files(repository: Path) -> None:
    named = FILE.findall((repository / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8"))
    assert len(named) > 60, "the pattern finds the names"
    assert [name for name in named if not (repository / name).is_file()] == []


def test_architecture_page_lists_every_package(repository: Path) -> None:
    """Packages for a single task are listed in the row of their parent package."""
    page = (repository / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")
    packages = {path.parent.relative_to(repository) for path in repository.glob("storage/**/__init__.py")}
    for depth in ("actors/*", "actors/broker/*", "actors/keeper/*"):
        packages |= {path.parent.relative_to(repository) for path in repository.glob(f"{depth}/__init__.py")}
    assert len(packages) > 20
    assert [str(package) for package in sorted(packages) if f"`{package}/`" not in page] == []
    subpackages = {
        path.parent
        for package in ("actors/broker/core", "client")
        for path in repository.glob(f"{package}/*/__init__.py")
    }
    assert len(subpackages) > 12
    assert [str(package) for package in sorted(subpackages) if f"`{package.name}`" not in page] == []
