"""A nearly full disk ends the suite with a clear word instead of dozens of failures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raymq.storage.log.retention import Disk
from tests.full_disk_stop import reason_to_stop


@pytest.mark.parametrize(("used", "stops"), [(0, False), (50, False), (80, False), (81, True), (100, True)])
def test_above_four_fifths_the_suite_stops(tmp_path: Path, used: int, stops: bool) -> None:
    told = reason_to_stop(tmp_path, Disk(used, 100 - used))
    assert (told is not None) == stops
    if told is not None:
        assert str(tmp_path) in told
        assert "TMPDIR" in told


def test_it_ends_before_its_first_test(tmp_path: Path, repository: Path) -> None:
    """As a whole run of its own, whose disk is said to be full."""
    (tmp_path / "full.py").write_text(
        "from raymq.storage.log import retention\nretention.Disk.of = classmethod(lambda cls, _: cls(95, 5))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "full", "tests/unit/storage/test_crc.py", "-q"],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "is 95% full" in done.stdout + done.stderr
    assert "passed" not in done.stdout
    assert "failed" not in done.stdout
