"""A file holds one idea: no file of the product is longer than 800 lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.test_imports import ROOMS

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 800


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_no_file_is_longer_than_its_idea(room: str) -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_bytes().splitlines()) for path in (ROOT / room).rglob("*.py")}
    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}
