"""Test the folder of temporary files, and that a full disk ends the suite."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raymq.storage.log.retention import DiskUsage
from tests import temporary_files
from tests.temporary_files import ROOM_BYTES, ROOT_VARIABLE, has_room, reason_to_stop


@pytest.mark.parametrize(("used", "stops"), [(0, False), (50, False), (80, False), (81, True), (100, True)])
def test_suite_stops_above_80_percent_disk_use(tmp_path: Path, used: int, stops: bool) -> None:
    reason = reason_to_stop(tmp_path, DiskUsage(used, 100 - used))
    assert (reason is not None) == stops
    if reason is not None:
        assert str(tmp_path) in reason
        assert "TMPDIR" in reason


def test_run_on_a_full_disk_ends_before_its_first_test(tmp_path: Path, repository: Path) -> None:
    """Run pytest in a child process in which the disk appears to be full."""
    (tmp_path / "full.py").write_text(
        "from raymq.storage.log import retention\nretention.DiskUsage.of = classmethod(lambda cls, _: cls(95, 5))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "full", "tests/unit/storage/test_crc.py", "-q"],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "is 95% full" in done.stdout + done.stderr
    assert "passed" not in done.stdout
    assert "failed" not in done.stdout


def test_memory_is_used_if_it_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiskUsage, "of", classmethod(lambda cls, _: DiskUsage(0, ROOM_BYTES)))
    assert has_room(tmp_path, 2 * ROOM_BYTES)
    assert not has_room(tmp_path, 2 * ROOM_BYTES - 1)
    assert not has_room(tmp_path / "missing", 2 * ROOM_BYTES)
    monkeypatch.setattr(DiskUsage, "of", classmethod(lambda cls, _: DiskUsage(0, ROOM_BYTES - 1)))
    assert not has_room(tmp_path, 2 * ROOM_BYTES)


@pytest.mark.parametrize("named", [None, "TMPDIR", ROOT_VARIABLE])
def test_folder_named_by_the_user_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str | None) -> None:
    monkeypatch.setattr(temporary_files, "has_room", lambda *_: True)
    for name in ("TMPDIR", ROOT_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    if named is not None:
        monkeypatch.setenv(named, "/named")
    temporary_files.choose_root(tmp_path)
    assert os.environ.get(ROOT_VARIABLE) == {None: str(tmp_path), "TMPDIR": None, ROOT_VARIABLE: "/named"}[named]


def test_folder_is_the_one_that_pytest_uses(tmp_path: Path) -> None:
    folder = temporary_files.folder(str(tmp_path / "gw0"), {})
    assert folder == tmp_path
    assert temporary_files.folder(None, {ROOT_VARIABLE: str(tmp_path)}) == tmp_path
