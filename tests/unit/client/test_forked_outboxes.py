"""An outbox and a fork: SQLite's own books of what is open, and its locks, must not be the parent's in the child."""

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


def keep(outbox: OutboxFile, number: int) -> int:
    record = b"%d" % number
    sizes = np.array((len(record),), np.int32)
    return outbox.keep(UnsentBatches("t", [OutboxEntry(bytearray(record), sizes)], "down"))[0]


def kept(path: Path) -> list[bytes]:
    outbox = OutboxFile(path)
    records = [batch.records for batch in outbox.batches()]
    outbox.close()
    return records


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox.db"


def test_what_a_child_keeps_outlives_the_end_of_its_parents_outbox(path: Path) -> None:
    """The child believed that it had the parent's locks: the parent, alone as it saw it, deleted the child's log."""
    parents = OutboxFile(path)
    keep(parents, 0)
    begun, ended = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(30)
        try:
            own = OutboxFile(path)
            keep(own, 1)
            os.write(begun[1], b".")
            os.read(ended[0], 1)
            keep(own, 2)
            own.close()
        finally:
            os._exit(0)
    os.read(begun[0], 1)
    parents.close()
    os.write(ended[1], b".")
    os.waitpid(child, 0)
    assert kept(path) == [b"0", b"1", b"2"]


def test_what_parent_and_child_keep_at_the_same_time_is_all_there(path: Path) -> None:
    parents = OutboxFile(path)
    keep(parents, 0)
    child = os.fork()
    if not child:
        signal.alarm(30)
        try:
            own = OutboxFile(path)
            for number in range(100, 200):
                keep(own, number)
            own.close()
        finally:
            os._exit(0)
    for number in range(1, 100):
        keep(parents, number)
    os.waitpid(child, 0)
    parents.close()
    assert sorted(map(int, kept(path))) == list(range(200))


def test_a_child_is_not_locked_out_by_what_a_thread_of_its_parent_did_in_the_moment_of_the_fork(path: Path) -> None:
    """That thread is not in the child: what it had locked there was locked for ever."""
    parents, stopped = OutboxFile(path), threading.Event()
    keep(parents, 0)

    def use() -> None:
        while not stopped.is_set():  # reads alone: who writes without end leaves others no time for it
            parents.batches()

    thread = threading.Thread(target=use)
    thread.start()

    def look() -> str:
        signal.alarm(10)
        own = OutboxFile(path)
        own.remove(keep(own, 1))
        own.close()
        return "kept"

    try:
        assert [run_in_child(look) for _ in range(_CHILDREN)] == ["kept"] * _CHILDREN
    finally:
        stopped.set()
        thread.join()
    parents.close()


def test_a_parent_goes_on_with_its_claim_behind_a_fork(path: Path) -> None:
    parents, other = OutboxFile(path), OutboxFile(path)
    assert parents.claim(60)
    assert run_in_child(lambda: "child") == "child"
    assert (other.claim(60), parents.claim(60)) == (False, True)
    parents.close()
    assert other.claim(60)
    other.close()
