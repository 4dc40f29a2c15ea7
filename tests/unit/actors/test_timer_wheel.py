"""Test the timer wheel, which holds the near timers, with tables."""

from __future__ import annotations

import numpy as np
import pytest

from raymq.actors.broker.core.delay.timer_wheel import TimerWheel
from raymq.storage.timers.timer_entry import ENTRY, NO_ENTRIES, Entries, EntryKind
from tests.validation import check_invariants


def entries(*pairs: tuple[int, int], size: int = 100) -> Entries:
    """Make entries of pairs (due time, queue offset)."""
    return np.array([(due, offset, 0, 0, size, EntryKind.WAITS) for due, offset in pairs], ENTRY)


def offsets(found: Entries) -> list[int]:
    return found["queue_offset"].tolist()


@pytest.fixture
def wheel() -> TimerWheel:
    made = TimerWheel()
    made.add(entries((30, 0), (10, 2), (10, 1)))
    made.add(entries((20, 3), (10, 1)))
    check_invariants(made)
    return made


@pytest.mark.parametrize(
    ("now_ms", "most", "most_bytes", "expected"),
    [
        (9, 9, 999, []),
        (10, 9, 999, [1, 2]),
        (29, 9, 999, [1, 2, 3]),
        (30, 9, 999, [1, 2, 3, 0]),
        (30, 3, 999, [1, 2, 3]),
        (30, 9, 250, [1, 2]),
        (30, 9, 1, [1]),
    ],
)
def test_due_entries_by_time_count_and_bytes(
    wheel: TimerWheel, now_ms: int, most: int, most_bytes: int, expected: list[int]
) -> None:
    assert offsets(wheel.due(now_ms, most, most_bytes)) == expected


def test_discard_updates_next_due_time_and_size(wheel: TimerWheel) -> None:
    for gone, next_due_ms, left in (
        ([(10, 1), (10, 2)], 20, 2),
        ([(30, 0)], 20, 1),
        ([(20, 7)], 20, 1),
        ([], 20, 1),
        ([(20, 3)], None, 0),
    ):
        wheel.discard(entries(*gone))
        check_invariants(wheel)
        assert (wheel.next_due_ms, len(wheel)) == (next_due_ms, left)
    wheel.add(NO_ENTRIES)
    assert wheel.next_due_ms is None


def test_clear_empties_wheel(wheel: TimerWheel) -> None:
    wheel.clear()
    assert len(wheel) == 0
