"""Test the lock that a process keeps for its life, and the lock's identity."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from raymq.storage.errors import StoreLocked
from raymq.storage.files import directory_lock
from raymq.storage.files.directory_lock import ProcessLock

HOLD = """
import sys
from pathlib import Path
from raymq.storage.files.directory_lock import ProcessLock
lock = ProcessLock(Path(sys.argv[1]), Path(sys.argv[1]) / "abort", "boot")
print(lock.place, flush=True)
sys.stdin.read()
"""


def take_lock(directory: Path, boot: str = "boot") -> ProcessLock:
    return ProcessLock(directory, directory / "abort", boot)


def place_of(directory: Path, boot: str = "boot") -> str:
    lock = take_lock(directory, boot)
    lock.release()
    return lock.place


def test_directory_is_locked_until_its_process_is_killed(tmp_path: Path) -> None:
    (tmp_path / "abort").write_text("17")
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        place = process.stdout.readline().strip()
        with pytest.raises(StoreLocked, match="17"):
            take_lock(tmp_path)
        process.kill()
        process.wait()
    assert place_of(tmp_path) == place


def test_second_lock_of_one_process_is_refused(tmp_path: Path) -> None:
    first = take_lock(tmp_path)
    with pytest.raises(StoreLocked):
        take_lock(tmp_path)
    first.release()
    first.release()
    take_lock(tmp_path).release()


def test_lock_place_follows_a_rename_but_not_a_copy(tmp_path: Path) -> None:
    original, copy, renamed = (tmp_path / name for name in ("original", "copy", "renamed"))
    original.mkdir()
    held = take_lock(original)
    shutil.copytree(original, copy)
    assert len(held.place) == 16
    assert place_of(copy) not in {held.place, ""}
    original.rename(renamed)
    with pytest.raises(StoreLocked):
        take_lock(renamed)
    held.release()
    assert place_of(renamed) == held.place


def test_reboot_changes_the_lock_place(tmp_path: Path) -> None:
    assert place_of(tmp_path, "another") not in {place_of(tmp_path), ""}
    assert place_of(tmp_path, "") == ""


def test_lock_on_a_network_file_system_has_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert directory_lock._file_system(fd) == "proc"
    finally:
        os.close(fd)
    assert place_of(Path("/proc/self")) == ""
    monkeypatch.setattr(directory_lock, "_file_system", lambda _: "nfs4")
    assert place_of(tmp_path) == ""

    def no_locks(*_: object) -> None:
        raise OSError(9, "no locks of directories")

    monkeypatch.setattr(directory_lock.fcntl, "flock", no_locks)
    assert place_of(tmp_path) == ""
