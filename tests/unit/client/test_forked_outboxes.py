"""Test outboxes across a fork: a child must not use the parent's SQLite connections and locks."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from raymq.client.produce.outbox_file import OutboxEntry, OutboxFile, UnsentBatches
from tests.forked_child import run_in_child

_CHILDREN = 30


def keep_record(outbox: OutboxFile, number: int) -> int:
    record = b"%d" % number
    sizes = np.array((len(record),), np.int32)
    return outbox.keep(UnsentBatches("t", [OutboxEntry(bytearray(record), sizes)], "down"))[0]


def read_records(path: Path) -> list[bytes]:
    outbox = OutboxFile(path)
    records = [batch.records for batch in outbox.batches()]
    outbox.close()
    return records


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox.db"


def test_batches_kept_by_a_child_survive_the_parent_close(path: Path) -> None:
    """Cover a regression: the parent's close deleted the SQLite log of the child."""
    parents = OutboxFile(path)
    keep_record(parents, 0)
    begun, ended = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(30)
        try:
            own = OutboxFile(path)
            keep_record(own, 1)
            os.write(begun[1], b".")
            os.read(ended[0], 1)
            keep_record(own, 2)
            own.close()
        finally:
            os._exit(0)
    os.read(begun[0], 1)
    parents.close()
    os.write(ended[1], b".")
    os.waitpid(child, 0)
    assert read_records(path) == [b"0", b"1", b"2"]


def test_parent_and_child_can_write_at_the_same_time(path: Path) -> None:
    parents = OutboxFile(path)
    keep_record(parents, 0)
    child = os.fork()
    if not child:
        signal.alarm(30)
        try:
            own = OutboxFile(path)
            for number in range(100, 200):
                keep_record(own, number)
            own.close()
        finally:
            os._exit(0)
    for number in range(1, 100):
        keep_record(parents, number)
    os.waitpid(child, 0)
    parents.close()
    assert sorted(map(int, read_records(path))) == list(range(200))


def test_child_is_not_blocked_by_locks_of_parent_threads(path: Path) -> None:
    """Such a thread does not exist in the child, and its locks stayed locked there."""
    parents, stopped = OutboxFile(path), threading.Event()
    keep_record(parents, 0)

    def use() -> None:
        while not stopped.is_set():  # only reads: endless writes would leave the child no time
            parents.batches()

    thread = threading.Thread(target=use)
    thread.start()

    def look() -> str:
        signal.alarm(10)
        own = OutboxFile(path)
        own.remove(keep_record(own, 1))
        own.close()
        return "kept"

    try:
        assert [run_in_child(look) for _ in range(_CHILDREN)] == ["kept"] * _CHILDREN
    finally:
        stopped.set()
        thread.join()
    parents.close()


def test_parent_keeps_its_claim_after_a_fork(path: Path) -> None:
    parents, other = OutboxFile(path), OutboxFile(path)
    assert parents.claim(60)
    assert run_in_child(lambda: "child") == "child"
    assert (other.claim(60), parents.claim(60)) == (False, True)
    parents.close()
    assert other.claim(60)
    other.close()
