"""Test the watermarks of expired timers, by due time and place in the timer queue."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest

from raymq.storage.timers import timer_log
from raymq.storage.timers.expiry_watermark import ExpiryWatermark, add_watermark, is_expired
from raymq.storage.timers.timer_entry import ENTRY, MIN_KEY, Entries, EntryKind
from raymq.storage.timers.timer_log import TimerLog


def entry(due_ms: int, offset: int, kind: EntryKind = EntryKind.WAITS) -> Entries:
    return np.array([(due_ms, offset, 10 * offset, 7, 100, kind)], ENTRY)


@pytest.mark.parametrize(
    ("known", "new", "left"),
    [
        ([], (0, 9, 9), []),
        ([], (5, 9, 9), [(5, 9, 9)]),
        ([(5, 9, 9)], (6, 9, 9), [(6, 9, 9)]),
        ([(5, 9, 9)], (5, 9, 10), [(5, 9, 9)]),
        ([(5, 9, 9)], (4, 9, 10), [(5, 9, 9)]),
        ([(5, 9, 9)], (4, 10, 10), [(5, 9, 9), (4, 10, 10)]),  # the clock was set back
        ([(5, 9, 9), (4, 10, 10)], (5, 11, 12), [(5, 11, 12)]),
    ],
)
def test_watermark_covered_by_another_is_dropped(
    known: list[tuple[int, int, int]], new: tuple[int, int, int], left: list[tuple[int, int, int]]
) -> None:
    assert [
        tuple(each) for each in add_watermark([ExpiryWatermark(*each) for each in known], ExpiryWatermark(*new))
    ] == left


@pytest.mark.parametrize("seed", range(20))
def test_expired_timers_stay_expired(seed: int) -> None:
    random_ = random.Random(seed)
    said, known, offset = [], tuple[ExpiryWatermark, ...](), 0
    entries = np.concatenate([entry(due, at) for due, at in itertools.product(range(12), range(30))])
    for _ in range(20):
        offset += random_.randrange(3)
        over = ExpiryWatermark(random_.randrange(12), offset, 0)
        said.append(over)
        known = add_watermark(known, over)
        expected = [any(e["due_ms"] < o.due_ms and e["queue_offset"] < o.queue_offset for o in said) for e in entries]
        assert is_expired(entries, known).tolist() == expected
        assert len(known) <= 12


def test_watermarks_beyond_the_limit_are_not_added() -> None:
    known = tuple[ExpiryWatermark, ...]()
    for number in range(100):
        known = add_watermark(known, ExpiryWatermark(1_000 - number, number + 1, 0))
    assert (len(known), known[0], known[-1]) == (64, ExpiryWatermark(1_000, 1, 0), ExpiryWatermark(937, 64, 0))
    assert add_watermark(known, ExpiryWatermark(2_000, 200, 0)) == (ExpiryWatermark(2_000, 200, 0),)


@pytest.fixture
def covered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a timer log with a watermark that the log up to 500 proves."""
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 1)
    log = TimerLog(tmp_path, log_end=1_000)
    log.append(np.concatenate([entry(50, 0), entry(50, 2)]))
    log.enqueued = 3
    write = log.checkpoint(500, over=ExpiryWatermark(100, 1, 500))
    assert write is not None
    write()
    log.close()
    return tmp_path


@pytest.mark.parametrize(("queue_end", "waits"), [(10, [2]), (0, [0, 2])])
def test_watermark_holds_only_within_queue_end(covered: Path, queue_end: int, waits: list[int]) -> None:
    # Other messages get the lost offsets.
    log = TimerLog(covered, log_end=500, queue_end=queue_end)
    found, _ = log.waiting((0, MIN_KEY), 200, 100)
    assert found["queue_offset"].tolist() == waits
    assert log.find(50, 7)["queue_offset"].tolist() == waits


def test_log_without_a_watermarks_end_rebuilds_the_timers(covered: Path) -> None:
    # Entries of timers whose copies are lost, and that are pending again, may have been dropped.
    for _ in range(2):
        log = TimerLog(covered, log_end=499, queue_end=10)
        assert (log.enqueued, log.log_end, log.overs) == (0, 0, ())
        assert len(log.waiting((0, MIN_KEY), 200, 100)[0]) == 0
