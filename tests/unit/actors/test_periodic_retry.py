"""Test the retries and log lines of periodic duties that fail.

Fault 13.25: a rescue on a full disk logged a traceback twenty times a second.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from raymq.actors.broker import periodic_tasks
from raymq.actors.broker.core.periodic_retry import MAX_BACKOFF_SECONDS, PeriodicTaskRetry, PerKeyRetry
from raymq.client import Message
from raymq.storage.errors import StoreFailed, StoreFull
from raymq.storage.tables.topic_config import TopicConfig
from tests.unit.actors.bench import Bench
from tests.unit.actors.clock import FakeClock
from tests.unit.actors.pop_bench import PopBench


def test_full_disk_backs_off_and_logs_single_lines() -> None:
    troubles = PeriodicTaskRetry("rescue", 0.05)
    verdicts = [troubles.failed(StoreFull("the disk is 99% full")) for _ in range(64)]
    waits = [verdict.wait for verdict in verdicts]
    assert waits[:4] == [0.05, 0.1, 0.2, 0.4]
    assert max(waits) == waits[-1] == MAX_BACKOFF_SECONDS
    lines = [verdict.line for verdict in verdicts if verdict.line is not None]
    assert len(lines) == 7
    assert lines[0].startswith("rescue failed: the disk is 99% full (free some")
    assert lines[-1].startswith("rescue failed 64 times in a row: the disk is 99% full")
    assert not any(verdict.with_traceback for verdict in verdicts)


def test_unexpected_error_logs_traceback_without_backoff() -> None:
    troubles = PeriodicTaskRetry("sweep", 0.05)
    verdicts = [troubles.failed(KeyError("x")) for _ in range(8)]
    assert {verdict.wait for verdict in verdicts} == {0.05}
    assert [verdict.line is not None for verdict in verdicts] == [True, True, False, True, False, False, False, True]
    assert all(verdict.with_traceback for verdict in verdicts if verdict.line)


def test_new_failure_resets_backoff() -> None:
    troubles = PeriodicTaskRetry("rescue", 0.05)
    for _ in range(3):
        troubles.failed(StoreFull("full"))
    other = troubles.failed(StoreFailed("input/output error"))
    assert other.wait == 0.05
    assert "rescue failed: input/output error" in (other.line or "")
    troubles.succeeded()
    assert troubles.failed(StoreFailed("input/output error")).line is not None


def test_rare_duty_keeps_its_interval() -> None:
    troubles = PeriodicTaskRetry("staged writes", 60.0)
    assert {troubles.failed(StoreFull("full")).wait for _ in range(5)} == {60.0}


async def test_duty_on_full_disk_logs_rarely(caplog: pytest.LogCaptureFixture) -> None:
    turns = 0
    enough = asyncio.Event()

    async def rescue() -> None:
        nonlocal turns
        turns += 1
        if turns == 8:
            enough.set()
        raise StoreFull("the disk is 99% full")

    with caplog.at_level(logging.WARNING, "raymq.actors.broker.periodic_tasks"):
        duty = asyncio.ensure_future(periodic_tasks.run_periodically("rescue", 0.001, rescue))
        await asyncio.wait_for(enough.wait(), 30)
        duty.cancel()
    assert len(caplog.records) == 4, "the 1st, 2nd, 4th and 8th time"
    assert not any(record.exc_info for record in caplog.records)
    assert not any("\n" in record.getMessage() for record in caplog.records)


def test_failing_key_backs_off_without_delaying_others() -> None:
    clock, tried = FakeClock(0.0), []
    troubles = PerKeyRetry(clock)
    for _ in range(2_000):
        for part in (1, 2):
            if troubles.is_backing_off(part):
                continue
            tried.append(part)
            if part == 1:
                troubles.failed(part, "level 1", ValueError("x"), logging.getLogger("x"))
            else:
                troubles.succeeded(part)
        clock.now += 0.05
    assert tried.count(2) == 2_000
    assert 10 < tried.count(1) < 20, "100 s: 0.1, 0.2, 0.4 ... s apart, at last 10 s"
    troubles.succeeded(1)
    assert not troubles.is_backing_off(1)


def test_failing_delay_level_logs_rarely_and_blocks_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Guard against a traceback in the log at each pass, twenty times a second."""
    bench.store.topic_configs.put(TopicConfig("t", 1, 1))
    bench.append(Message("t", b"1", delay_level=1), delayed=True)
    bench.append(Message("t", b"2", delay_level=2), delayed=True)
    deliver, tries = bench.core.schedule._deliver_level, []

    def failing(level: int, now_ms: int, most: int) -> tuple[int, int, int | None]:
        if level == 1:
            tries.append(now_ms)
            raise KeyError("nobody expected that")
        return deliver(level, now_ms, most)

    monkeypatch.setattr(bench.core.schedule, "_deliver_level", failing)
    for _ in range(1_200):
        bench.core.deliver_due()
        bench.clock.now += 0.05
    assert bench.bodies("t") == [b"2"]
    assert len(tries) < 20
    assert 1 <= len(caplog.records) <= 5
    monkeypatch.undo()
    bench.clock.now += MAX_BACKOFF_SECONDS
    bench.core.deliver_due()
    assert bench.bodies("t") == [b"2", b"1"]


def test_failing_pop_sweep_logs_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = PopBench(tmp_path)
    bench.send(b"0")
    assert bench.receive()
    tries: list[object] = []

    def failing(lent: object) -> None:
        tries.append(lent)
        raise KeyError("nobody expected that")

    monkeypatch.setattr(bench.pop, "_advance", failing)
    for _ in range(1_200):
        bench.pop.sweep()
        bench.clock.now += 0.05
    assert len(tries) < 20
    assert 1 <= len(caplog.records) <= 5
    monkeypatch.undo()
    bench.close()
