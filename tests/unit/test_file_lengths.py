"""Test that no file of the product is longer than 800 lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.test_imports import TOP_PACKAGES

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 800


@pytest.mark.parametrize("room", sorted(TOP_PACKAGES))
def test_no_product_file_has_more_than_800_lines(room: str) -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_bytes().splitlines()) for path in (ROOT / room).rglob("*.py")}
    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}
