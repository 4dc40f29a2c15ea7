"""Test the uptime clock, which counts seconds over restarts without the wall clock."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from raymq.storage.files.file_calls import replaced
from raymq.storage.files.json_file import DECODE_ERRORS
from raymq.storage.tables.counted_time import CountedTime
from raymq.storage.uptime_clock import SAVED_SECONDS, UptimeClock
from tests.faulty_calls import FaultyCalls
from tests.state_journals import open_table
from tests.unit.actors.clock import FakeClock


def open_clock(directory: Path, elapsed: Callable[[], float]) -> UptimeClock:
    """Open the table as a restart would, and its clock."""
    return UptimeClock(open_table(directory, CountedTime()), elapsed)


def test_uptime_continues_over_restarts(tmp_path: Path) -> None:
    counted = 0.0
    for start in (5_000.0, 30.0, 900_000.0):  # of the machine's own clock
        elapsed = FakeClock(start)
        clock = open_clock(tmp_path, elapsed)
        assert clock() == pytest.approx(counted)
        for _ in range(100):
            elapsed.advance(SAVED_SECONDS)
            clock.save()
        counted += 100 * SAVED_SECONDS
        elapsed.advance(SAVED_SECONDS / 2)
        assert clock() == pytest.approx(counted + SAVED_SECONDS / 2)
        clock.save()  # too early: this save is skipped


def test_uptime_excludes_time_without_a_process(tmp_path: Path) -> None:
    elapsed = FakeClock()
    clock = open_clock(tmp_path, elapsed)
    elapsed.advance(SAVED_SECONDS)
    clock.save()
    elapsed.advance(10 * 86_400.0)
    assert open_clock(tmp_path, elapsed)() == pytest.approx(SAVED_SECONDS)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 1e12, "x", None])
def test_impossible_count_is_refused(seconds: object) -> None:
    table = CountedTime()
    with pytest.raises(DECODE_ERRORS):
        table.apply((seconds,))
    assert table.seconds == 0.0


def test_save_on_a_full_disk_raises_no_error(tmp_path: Path) -> None:
    elapsed = FakeClock()
    clock = open_clock(tmp_path, elapsed)
    elapsed.advance(SAVED_SECONDS)
    with replaced(FaultyCalls("write", 1, errno.ENOSPC)):
        clock.save()
    assert clock() == pytest.approx(SAVED_SECONDS)
    clock.save()
    assert open_clock(tmp_path, elapsed)() == pytest.approx(SAVED_SECONDS)
