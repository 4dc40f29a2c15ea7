"""Test the uptime clock, which counts seconds over restarts without the wall clock."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from raymq.storage.files.file_calls import replaced
from raymq.storage.uptime_clock import SAVED_SECONDS, UptimeClock
from tests.faulty_calls import FaultyCalls
from tests.unit.actors.clock import FakeClock


def test_uptime_continues_over_restarts(tmp_path: Path) -> None:
    counted = 0.0
    for start in (5_000.0, 30.0, 900_000.0):  # of the machine's own clock
        elapsed = FakeClock(start)
        clock = UptimeClock(tmp_path, elapsed)
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
    clock = UptimeClock(tmp_path, elapsed)
    elapsed.advance(SAVED_SECONDS)
    clock.save()
    elapsed.advance(10 * 86_400.0)
    assert UptimeClock(tmp_path, elapsed)() == pytest.approx(SAVED_SECONDS)


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"[]", b"{}", b'{"seconds": NaN}', b'{"seconds": 1e999}', b'{"seconds": -1}', b"[" * 9_999],
)
def test_unreadable_uptime_file_counts_as_zero(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "raymq").mkdir()
    (tmp_path / "raymq" / "counted_time.json").write_bytes(content)
    assert UptimeClock(tmp_path, FakeClock())() == 0.0


def test_save_on_a_full_disk_raises_no_error(tmp_path: Path) -> None:
    elapsed = FakeClock()
    clock = UptimeClock(tmp_path, elapsed)
    elapsed.advance(SAVED_SECONDS)
    with replaced(FaultyCalls("open", 1, errno.ENOSPC)):
        clock.save()
    assert clock() == pytest.approx(SAVED_SECONDS)
    clock.save()
    assert UptimeClock(tmp_path, elapsed)() == pytest.approx(SAVED_SECONDS)
