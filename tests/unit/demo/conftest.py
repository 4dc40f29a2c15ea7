"""Fixtures that write input files of the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def input_file(tmp_path: Path) -> Any:
    """Return a function that writes a file and returns its path."""

    def write(text: str | bytes, name: str = "input") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture
def csv_file(input_file: Any) -> Any:
    """Return a function that writes a file with a suffix and returns its path."""
    return lambda text, name="input.csv": input_file(text, name)
