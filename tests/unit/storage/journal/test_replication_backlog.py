"""Test the replication backlog: its bounds, and that its events have no gap."""

from __future__ import annotations

import pytest

from raymq.storage.errors import InvalidInput
from raymq.storage.journal.journal_event import JournalEvent
from raymq.storage.journal.replication_backlog import MAX_EVENTS, ReplicationBacklog


def filled_backlog(
    count: int, *, most_bytes: int = 1 << 30, most_held: int = 1 << 30, size: int = 800
) -> ReplicationBacklog:
    ring = ReplicationBacklog(10, most_bytes, most_held)
    for number in range(11, 11 + count):
        ring.add(JournalEvent(number, 0, b"x" * size))
    return ring


def test_after_returns_events_behind_a_sequence_number() -> None:
    ring = filled_backlog(5)
    assert [each.sequence for each in ring.after(10)] == [11, 12, 13, 14, 15]
    assert [each.sequence for each in ring.after(13)] == [14, 15]
    assert list(ring.after(15)) == list(ring.after(99)) == []
    with pytest.raises(InvalidInput):
        ring.after(9)


def test_old_events_are_dropped_beyond_the_byte_limit() -> None:
    ring = filled_backlog(1_000, most_bytes=100_000)
    assert (len(ring), ring.dropped, ring.last) == (100, 910, 1_010)
    assert [each.sequence for each in ring.after(910)] == list(range(911, 1_011))
    assert [each.sequence for each in ring.after(950)] == list(range(951, 1_011))
    with pytest.raises(InvalidInput):
        ring.after(909)


def test_event_larger_than_the_backlog_is_folded_at_once() -> None:
    ring = filled_backlog(3, most_bytes=500)
    assert (len(ring), ring.dropped, ring.last) == (0, 13, 13)
    assert list(ring.after(13)) == []


def test_retained_events_are_held_up_to_a_bound() -> None:
    ring = filled_backlog(10, most_bytes=100_000, most_held=300_000)
    ring.retain(15)
    for number in range(21, 251):
        ring.add(JournalEvent(number, 0, b"x" * 800))
    assert ring.dropped == 15
    for number in range(251, 611):
        ring.add(JournalEvent(number, 0, b"x" * 800))
    assert ring.dropped == 310, "it takes too much: the replica gets another snapshot"
    ring.retain(None)
    assert ring.dropped == 510


def test_after_returns_at_most_max_events() -> None:
    ring = filled_backlog(3 * MAX_EVENTS, size=1)
    assert [each.sequence for each in ring.after(20)] == list(range(21, 21 + MAX_EVENTS))
