"""The threads that bring a store to disk go on whatever one turn met."""

from __future__ import annotations

import errno

import pytest

from raymq.storage.errors import StoreBusy, StoreFailed
from raymq.storage.log import flush as make_flush
from raymq.storage.log.flush import Flusher
from tests.polling import poll_until

ERRORS = (
    StoreBusy("no descriptors"),
    StoreFailed("it fails"),
    OSError(errno.EIO, "it fails"),
    MemoryError(),
    KeyError(7),
)


def test_a_turn_that_fails_is_not_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread ended with what is no error of the disk's, and what was appended from then on stayed in memory."""
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
