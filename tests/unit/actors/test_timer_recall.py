"""Test the recall of timed messages: withdrawn, already delivered, or unknown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from raymq.actors.errors import InvalidInput, StoreFull
from raymq.actors.protocol import RecallStatus
from raymq.actors.recall_handle import RecallHandle
from raymq.client import Message
from raymq.storage.cooperative_steps import run_steps
from raymq.storage.timers import timer_log
from raymq.storage.timers.timer_log import TimerLog
from tests.unit.actors.timer_bench import DAY, HOUR, TimerBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TimerBench]:
    with closing(TimerBench(tmp_path)) as made:
        yield made


def count_entries(bench: TimerBench) -> int:
    """Count the entries in the runs of the timer log."""
    return sum(map(len, bench.core.timers.log.runs))


@pytest.fixture
def runs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each checkpoint write a run of the entries since the last one."""
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 1)


def check_undelivered_and_forgotten(bench: TimerBench, seconds: float) -> None:
    bench.clock.advance(seconds)
    assert bench.deliver() == []
    bench.forget()
    assert count_entries(bench) == 0


@pytest.mark.usefixtures("runs_at_once")
def test_recall_withdraws_message_and_is_repeatable(bench: TimerBench) -> None:
    near, far = bench.send(b"near", after=5.0) + bench.send(b"far", after=20 * DAY)
    for message in (near, far):
        assert bench.recall(message) is RecallStatus.WITHDRAWN
        assert bench.recall(message) is RecallStatus.WITHDRAWN
    bench.kill()
    assert bench.recall(far) is RecallStatus.WITHDRAWN
    check_undelivered_and_forgotten(bench, 21 * DAY)
    for message in (near, far):
        assert bench.recall(message) is RecallStatus.WITHDRAWN


@pytest.mark.usefixtures("runs_at_once")
def test_recall_of_delivered_message(bench: TimerBench) -> None:
    [message] = bench.send(b"m", after=5.0)
    bench.clock.advance(5)
    bench.deliver()
    assert bench.recall(message) is RecallStatus.DELIVERED
    bench.kill()
    assert bench.recall(message) is RecallStatus.DELIVERED
    check_undelivered_and_forgotten(bench, 2 * HOUR)
    assert bench.recall(message) is RecallStatus.DELIVERED


def test_recall_of_unknown_message(bench: TimerBench) -> None:
    assert bench.recall(Message("t", b"m", deliver_at=bench.clock.now + 5)) is RecallStatus.UNKNOWN
    plain = Message("t", b"m")
    handle = RecallHandle("t", "broker-a", bench.now_ms(), plain.unique_key)
    assert run_steps(bench.core.recalls.recall_steps(handle)) is RecallStatus.UNKNOWN
    with pytest.raises(InvalidInput, match="broker-b"):
        run_steps(bench.core.recalls.recall_steps(RecallHandle("t", "broker-b", bench.now_ms(), "x")))


def test_withdrawn_message_may_be_sent_again(bench: TimerBench) -> None:
    [message] = bench.send(b"m", after=5.0)
    bench.append(message)  # a repeated try
    assert bench.recall(message) is RecallStatus.WITHDRAWN
    bench.append(message, born_ms=bench.now_ms())
    bench.kill()
    bench.clock.advance(5)
    assert bench.deliver() == [b"m"]


def test_recall_handle_is_decoded_and_validated() -> None:
    handle = RecallHandle("t", "broker-a", 1_700_000_000_000, "7F000001")
    assert RecallHandle.decode(handle.encode()) == handle
    for text in ("", "no base64!", "djEgdA==", "djIgdCBiIDEgaw==", "djEgdCBiIHggaw=="):
        with pytest.raises(InvalidInput):
            RecallHandle.decode(text)


def test_recall_succeeds_though_timer_log_write_fails(bench: TimerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard against a reported refusal after which the message is lost."""
    [message] = bench.send(b"a", after=10)
    bench.deliver()
    with monkeypatch.context() as patched:
        patched.setattr(TimerLog, "append", lambda *_: (_ for _ in ()).throw(StoreFull("no room")))
        assert bench.recall(message) is RecallStatus.WITHDRAWN
        bench.clock.advance(10)
        with pytest.raises(StoreFull):
            bench.core.deliver_due()
    assert bench.deliver() == []
    assert bench.recall(message) is RecallStatus.WITHDRAWN
