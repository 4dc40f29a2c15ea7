"""The folders of bridges: those of processes that were killed go with the next bridge, and no others."""

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


def killed(folders: Path) -> Path:
    """What a process has left that was killed."""
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


def test_what_a_killed_process_left_goes_with_the_next_bridge(folders: Path) -> None:
    """Each driver that was killed left what Spark had shuffled and cached, for good."""
    living = SessionFolder()
    left = killed(folders)
    assert (left / "local" / "shuffled").exists()
    another = SessionFolder()
    assert sorted(folders.iterdir()) == sorted([living.path, another.path])
    for each in (living, another):
        each.close()
    assert list(folders.iterdir()) == []


def test_what_is_not_whole_or_no_bridges_stays(folders: Path) -> None:
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
