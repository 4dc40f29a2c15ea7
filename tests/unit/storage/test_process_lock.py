"""The lock that a process keeps for its life, and which lock that is."""

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


def taken(directory: Path, boot: str = "boot") -> ProcessLock:
    return ProcessLock(directory, directory / "abort", boot)


def place_of(directory: Path, boot: str = "boot") -> str:
    lock = taken(directory, boot)
    lock.release()
    return lock.place


def test_a_directory_has_one_process_until_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "abort").write_text("17")
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        place = process.stdout.readline().strip()
        with pytest.raises(StoreLocked, match="17"):
            taken(tmp_path)
        process.kill()
        process.wait()
    assert place_of(tmp_path) == place


def test_a_second_lock_of_one_process_is_refused_too(tmp_path: Path) -> None:
    first = taken(tmp_path)
    with pytest.raises(StoreLocked):
        taken(tmp_path)
    first.release()
    first.release()
    taken(tmp_path).release()


def test_a_copy_has_another_place_and_a_renamed_directory_its_own(tmp_path: Path) -> None:
    original, copy, renamed = (tmp_path / name for name in ("original", "copy", "renamed"))
    original.mkdir()
    held = taken(original)
    shutil.copytree(original, copy)
    assert len(held.place) == 16
    assert place_of(copy) not in {held.place, ""}
    original.rename(renamed)
    with pytest.raises(StoreLocked):
        taken(renamed)
    held.release()
    assert place_of(renamed) == held.place


def test_another_start_of_the_machine_is_another_place(tmp_path: Path) -> None:
    assert place_of(tmp_path, "another") not in {place_of(tmp_path), ""}
    assert place_of(tmp_path, "") == ""


def test_on_a_network_file_system_the_lock_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
