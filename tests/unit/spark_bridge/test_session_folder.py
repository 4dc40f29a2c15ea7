"""Test session folders: a new session removes those of killed processes, and no others."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from raymq.spark_bridge.session_folder import SessionFolder, remove_abandoned


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def run_killed_process(folders: Path) -> Path:
    """Run a process that is killed, and return the folder it left."""
    program = (
        "import os, signal, sys, tempfile\n"
        "tempfile.tempdir = sys.argv[1]\n"
        "from raymq.spark_bridge.session_folder import SessionFolder\n"
        "folder = SessionFolder()\n"
        "(folder.path / 'local').mkdir()\n"
        "(folder.path / 'local' / 'shuffled').write_bytes(bytes(1000))\n"
        "print(folder.path, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(folders)], capture_output=True, text=True, check=False)
    return Path(done.stdout.strip())


def test_next_session_removes_folder_of_a_killed_process(folders: Path) -> None:
    # Each killed driver left Spark's shuffle and cache files for good.
    living = SessionFolder()
    left = run_killed_process(folders)
    assert (left / "local" / "shuffled").exists()
    another = SessionFolder()
    assert sorted(folders.iterdir()) == sorted([living.path, another.path])
    for each in (living, another):
        each.close()
    assert list(folders.iterdir()) == []


def test_incomplete_and_foreign_folders_are_kept(folders: Path) -> None:
    begun, other, link = (folders / f"raymq-spark-{name}" for name in ("begun", "file", "link"))
    begun.mkdir()
    other.write_bytes(b"")
    target = folders / "elsewhere"
    target.mkdir()
    (target / "lock").write_bytes(b"")
    link.symlink_to(target)
    remove_abandoned()
    assert sorted(folders.iterdir()) == sorted([begun, other, link, target])
    assert (target / "lock").exists()
