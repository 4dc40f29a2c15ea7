"""Test that a wrong wall clock neither aborts an active write nor drops a commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.actors.broker.core.writes.transaction_coordinator import (
    RESULT_RETENTION_SECONDS,
    TRANSACTION_TIMEOUT_SECONDS,
)
from raymq.storage.tables.write_transactions import WriteState
from tests.unit.actors.bench import Bench

DAY = 86_400.0


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("days", [-9, 4, 8, 400])
def test_clock_change_ends_no_transaction(tmp_path: Path, days: int, *, is_restarted: bool) -> None:
    bench = Bench(tmp_path)
    bench.core.writes.open("open", "t")
    bench.core.writes.open("done", "t")
    bench.core.writes.commit("done", {"broker-a": {"p": 1}})
    bench.core.writes.mark_finished("done", "broker-a")
    bench.clock.advance(days * DAY)
    if is_restarted:
        bench.crash()
    assert bench.core.writes.sweep() == []
    assert bench.core.writes.commit("open", {"broker-a": {"p": 1}}).decision is WriteState.COMMITTED
    assert bench.core.writes.transaction_status("done").decision is WriteState.COMMITTED
    bench.store.close()


def test_transactions_expire_by_total_running_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.core.writes.open("open", "t")
    bench.core.writes.open("done", "t")
    bench.core.writes.abort("done")
    aborted = forgotten = 0.0
    life, lived = 5 * 3_600.0, 0.0
    while not forgotten:
        for _ in range(10):
            bench.elapsed.advance(life / 10)
            bench.core.counted_time.save()
        lived += life
        if bench.core.writes.sweep():
            aborted = lived
        if bench.core.writes.transaction_status("done").decision is None:
            forgotten = lived
        bench.crash()
    assert TRANSACTION_TIMEOUT_SECONDS <= aborted <= TRANSACTION_TIMEOUT_SECONDS + 2 * life
    assert RESULT_RETENTION_SECONDS <= forgotten <= RESULT_RETENTION_SECONDS + 2 * life
    bench.store.close()
