"""Test the replica file, which the event loop and the log-replacing thread both change."""

from __future__ import annotations

import tarfile
import threading
from pathlib import Path

import pytest

from raymq.actors.broker.replica import replica_stream as stream_module
from raymq.actors.broker.replica.replica_file import ReplicaFile
from raymq.actors.broker.replica.replica_stream import ReplicaStream, record_start
from raymq.storage import failpoints
from raymq.storage.errors import StoreFailed
from tests.store_records import SMALL


def test_concurrent_changes_are_both_saved(tmp_path: Path) -> None:
    memory = ReplicaFile(tmp_path)
    memory.change(wiping=4096)
    reached, may_go = threading.Event(), threading.Event()

    def wait() -> None:
        reached.set()
        may_go.wait(20)

    failpoints.arm("replace.before_rename", wait)
    try:
        wipes = threading.Thread(target=lambda: memory.change(wiping=None))
        wipes.start()
        assert reached.wait(20)
        seals = threading.Thread(target=lambda: memory.change(fenced=7))
        seals.start()
        seals.join(0.3)
        may_go.set()
        for each in (wipes, seals):
            each.join(20)
    finally:
        failpoints.arm("")
    for found in (memory.now, ReplicaFile(tmp_path).now):
        assert found.fenced == 7
        assert found.wiping is None, "the next start would replace a log that has grown since"


def test_failed_disk_does_not_count_as_clean_stop(tmp_path: Path) -> None:
    stream = ReplicaStream.open(tmp_path, SMALL, ReplicaFile(tmp_path))
    was_safe = stream.is_safe
    stream.store._parts.health.fail(StoreFailed("the disk"))
    stream.close()
    assert (was_safe, stream.is_safe) == (True, False)


@pytest.mark.parametrize("flushed", [True, False])
def test_tail_loss_depends_on_flush_mode_of_last_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushed: bool
) -> None:
    """Cover a flush setting that changes between a power loss and the next start."""
    record_start(ReplicaFile(tmp_path), flushes=flushed)
    monkeypatch.setattr(stream_module, "boot_id", lambda: "another boot")
    memory = ReplicaFile(tmp_path)
    record_start(memory, flushes=not flushed)
    assert memory.now.tail_lost is not flushed
    assert memory.now.memory_lost


@pytest.mark.parametrize("interrupted", [True, False])
def test_replica_converted_without_its_state_is_marked(repository: Path, tmp_path: Path, interrupted: bool) -> None:
    # The conversion's snapshot hid what is missing: the replica was elected before those that have everything.
    with tarfile.open(repository / "tests" / "fixtures" / "format_2" / "killed.tar.xz") as archive:
        archive.extractall(tmp_path)
    if interrupted:
        (tmp_path / "raymq" / "state_snapshot").write_bytes(b"[]")
    metadata = ReplicaFile(tmp_path)
    stream = ReplicaStream.open(tmp_path, SMALL, metadata)
    record_start(metadata, flushes=True, is_state_lost=stream.is_state_lost)
    stream.close()
    assert ReplicaFile(tmp_path).now.tail_lost is interrupted
