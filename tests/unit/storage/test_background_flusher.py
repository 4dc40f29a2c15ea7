"""Test that the flush threads continue after any error."""

from __future__ import annotations

import errno

import pytest

from raymq.storage.errors import StoreBusy, StoreFailed
from raymq.storage.log import background_flusher as make_flush
from raymq.storage.log.background_flusher import Flusher
from tests.polling import poll_until

ERRORS = (
    StoreBusy("no descriptors"),
    StoreFailed("it fails"),
    OSError(errno.EIO, "it fails"),
    MemoryError(),
    KeyError(7),
)


def test_flusher_continues_after_a_failed_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    # The thread used to end with an error that was not the disk's; later appends stayed in memory.
    monkeypatch.setattr(make_flush, "_AT_MOST_SECONDS", 0.01)
    turns = {"flush": 0, "checkpoint": 0}

    def fail(kind: str) -> None:
        turns[kind] += 1
        raise ERRORS[turns[kind] % len(ERRORS)]

    flusher = Flusher(lambda: fail("flush"), lambda: fail("checkpoint"), lambda: 1, 1, 0)
    flusher.start()
    try:
        poll_until(lambda: min(turns.values()) > 2 * len(ERRORS))
    finally:
        flusher.stop()
