"""Messages for a chosen time are called back, with a clock of ours: withdrawn, already delivered, or unknown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from raymq.actors.errors import InvalidInput, StoreFull
from raymq.actors.protocol import RecallStatus
from raymq.actors.recall_handle import RecallHandle
from raymq.client import Message
from raymq.storage.timers import timer_log
from raymq.storage.timers.timer_log import TimerLog
from tests.unit.actors.timer_bench import DAY, HOUR, TimerBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TimerBench]:
    with closing(TimerBench(tmp_path)) as made:
        yield made


def told(bench: TimerBench) -> int:
    """How many entries the timer log has in its runs."""
    return sum(map(len, bench.core.timers.log.runs))


@pytest.fixture
def runs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each checkpoint makes a run of what was told since the last one."""
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 1)


def nothing_comes_and_it_is_forgotten(bench: TimerBench, seconds: float) -> None:
    bench.clock.advance(seconds)
    assert bench.deliver() == []
    bench.forget()
    assert told(bench) == 0


@pytest.mark.usefixtures("runs_at_once")
def test_recall(bench: TimerBench) -> None:
    near, far = bench.send(b"near", after=5.0) + bench.send(b"far", after=20 * DAY)
    for message in (near, far):
        assert bench.recall(message) is RecallStatus.WITHDRAWN
        assert bench.recall(message) is RecallStatus.WITHDRAWN
    bench.kill()
    assert bench.recall(far) is RecallStatus.WITHDRAWN
    nothing_comes_and_it_is_forgotten(bench, 21 * DAY)
    for message in (near, far):
        assert bench.recall(message) is RecallStatus.WITHDRAWN


@pytest.mark.usefixtures("runs_at_once")
def test_recall_of_what_was_delivered(bench: TimerBench) -> None:
    [message] = bench.send(b"m", after=5.0)
    bench.clock.advance(5)
    bench.deliver()
    assert bench.recall(message) is RecallStatus.DELIVERED
    bench.kill()
    assert bench.recall(message) is RecallStatus.DELIVERED
    nothing_comes_and_it_is_forgotten(bench, 2 * HOUR)
    assert bench.recall(message) is RecallStatus.DELIVERED


def test_recall_of_what_nobody_knows(bench: TimerBench) -> None:
    assert bench.recall(Message("t", b"m", deliver_at=bench.clock.now + 5)) is RecallStatus.UNKNOWN
    plain = Message("t", b"m")
    handle = RecallHandle("t", "broker-a", bench.now_ms(), plain.unique_key)
    assert bench.core.recalls.recall(handle) is RecallStatus.UNKNOWN
    with pytest.raises(InvalidInput, match="broker-b"):
        bench.core.recalls.recall(RecallHandle("t", "broker-b", bench.now_ms(), "x"))


def test_what_was_withdrawn_and_sent_again_waits_again(bench: TimerBench) -> None:
    [message] = bench.send(b"m", after=5.0)
    bench.append(message)  # a try that was repeated
    assert bench.recall(message) is RecallStatus.WITHDRAWN
    bench.append(message, born_ms=bench.now_ms())
    bench.kill()
    bench.clock.advance(5)
    assert bench.deliver() == [b"m"]


def test_handles() -> None:
    handle = RecallHandle("t", "broker-a", 1_700_000_000_000, "7F000001")
    assert RecallHandle.decode(handle.encode()) == handle
    for text in ("", "no base64!", "djEgdA==", "djIgdCBiIDEgaw==", "djEgdCBiIHggaw=="):
        with pytest.raises(InvalidInput):
            RecallHandle.decode(text)


def test_what_is_withdrawn_in_the_log_is_withdrawn_though_the_disk_takes_no_note_of_it(
    bench: TimerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was said to be refused, so that nothing was withdrawn, and the message never came."""
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
