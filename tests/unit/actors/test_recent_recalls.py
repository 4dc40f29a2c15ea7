"""Test recent recalls: late tries of the send of a recalled message are refused."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from raymq.actors.broker.core.appending.inbound_message import InboundMessage
from raymq.actors.broker.core.delay import recent_recalls
from raymq.actors.broker.core.delay.recent_recalls import RECALL_WINDOW_SECONDS, RecentRecalls
from raymq.actors.errors import MessageIllegal
from raymq.actors.protocol import RecallStatus
from raymq.client import Message
from tests.unit.actors.clock import FakeClock
from tests.unit.actors.timer_bench import HOST, TimerBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TimerBench]:
    with closing(TimerBench(tmp_path)) as made:
        yield made


@pytest.mark.parametrize(
    ("topic", "unique_key", "born", "after", "refused"),
    [
        ("t", "k", 999.0, 0.0, True),
        ("t", "k", 999.0, RECALL_WINDOW_SECONDS, True),
        ("t", "k", 999.0, RECALL_WINDOW_SECONDS + 1, False),
        ("t", "k", 1_000.0, 0.0, False),
        ("t", "k", 1_000.5, 1.0, False),
        ("t", "other", 999.0, 0.0, False),
        ("other", "k", 999.0, 0.0, False),
        ("t", None, 999.0, 0.0, False),
    ],
)
def test_try_sent_before_recall_is_refused(
    topic: str, unique_key: str | None, born: float, after: float, refused: bool
) -> None:
    clock = FakeClock(1_000.0)
    recalls = RecentRecalls(clock)
    recalls.check("t", "k", 0)
    recalls.add("t", "k")
    clock.advance(after)
    if refused:
        with pytest.raises(MessageIllegal, match="unique_key"):
            recalls.check(topic, unique_key, int(born * 1000))
    else:
        recalls.check(topic, unique_key, int(born * 1000))


def test_repeated_recall_restarts_its_window() -> None:
    clock = FakeClock()
    recalls = RecentRecalls(clock)
    for _ in range(3):
        recalls.add("t", "k")
        clock.advance(RECALL_WINDOW_SECONDS - 1)
    with pytest.raises(MessageIllegal):
        recalls.check("t", "k", 0)


def test_remembered_recalls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_recalls, "MOST", 3)
    clock = FakeClock()
    recalls = RecentRecalls(clock)
    for number in range(5):
        recalls.add("t", str(number))
    for number in (0, 1):
        recalls.check("t", str(number), 0)
    for number in (2, 3, 4):
        with pytest.raises(MessageIllegal):
            recalls.check("t", str(number), 0)
    clock.advance(RECALL_WINDOW_SECONDS + 1)
    recalls.add("t", "new")
    assert len(recalls._at) == 1


def test_long_unique_key_takes_bounded_memory() -> None:
    """Guard against 14 GiB for 100,000 recalls of unknown keys with 150,000 characters."""
    recalls = RecentRecalls(FakeClock())
    tracemalloc.start()
    for number in range(300):
        recalls.add("t", f"{number:08d}" + "x" * 150_000)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 300 * 1_000
    with pytest.raises(MessageIllegal):
        recalls.check("t", f"{7:08d}" + "x" * 150_000, 0)
    recalls.check("t", f"{7:08d}" + "x" * 149_999, 0)
    recalls.add("t", "\ud800")
    with pytest.raises(MessageIllegal):
        recalls.check("t", "\ud800", 0)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("after", [0.0, 10.0])
def test_late_try_of_recalled_message_is_refused(bench: TimerBench, stored: bool, after: float) -> None:
    """Cover a copy withdrawn on this broker, and a copy on another broker."""
    message = Message("t", b"m", deliver_at=bench.clock.now + 5)
    if stored:
        bench.append(message)
    assert bench.recall(message) is (RecallStatus.WITHDRAWN if stored else RecallStatus.UNKNOWN)
    bench.clock.advance(after)
    with pytest.raises(MessageIllegal, match="unique_key"):
        bench.append(message)
    bench.clock.advance(10)
    assert bench.deliver() == []
    assert bench.recall(message) is (RecallStatus.WITHDRAWN if stored else RecallStatus.UNKNOWN)


def test_late_rocketmq_try_of_recalled_message_is_refused(bench: TimerBench) -> None:
    message = Message("t", b"m", deliver_at=bench.clock.now + 5)
    assert bench.recall(message) is RecallStatus.UNKNOWN
    properties = {"UNIQ_KEY": message.unique_key, "TIMER_DELAY_SEC": "1"}
    with pytest.raises(MessageIllegal, match="unique_key"):
        bench.core.send_processor.accept(InboundMessage("t", 0, b"m", properties, bench.now_ms() - 1, HOST))
    bench.clock.advance(10)
    assert bench.deliver() == []


def test_delivered_message_may_be_sent_again(bench: TimerBench) -> None:
    message = Message("t", b"m", deliver_at=bench.clock.now + 5)
    bench.append(message)
    bench.clock.advance(5)
    assert bench.deliver() == [b"m"]
    assert bench.recall(message) is RecallStatus.DELIVERED
    bench.append(message)
    assert len(bench.delivered()) == 2


@pytest.mark.parametrize("ahead", [-5.0, 0.0, 5.0, 86_400.0])
def test_late_try_is_refused_for_any_client_clock(bench: TimerBench, ahead: float) -> None:
    """Compare client times: all tries of a send carry the same one."""
    message = Message("t", b"m", deliver_at=bench.clock.now + 5)
    born_ms = bench.now_ms() + int(ahead * 1000)
    bench.append(message, born_ms=born_ms)
    bench.clock.advance(0.5)
    for _ in range(2):  # a repeated recall is of the same message
        assert bench.recall(message) is RecallStatus.WITHDRAWN
    with pytest.raises(MessageIllegal, match="unique_key"):
        bench.append(message, born_ms=born_ms)
    bench.clock.advance(10)
    assert bench.deliver() == []


def test_new_send_by_clock_ahead_is_accepted(bench: TimerBench) -> None:
    message = Message("t", b"m", deliver_at=bench.clock.now + 5)
    bench.append(message, born_ms=bench.now_ms() + 86_400_000)
    assert bench.recall(message) is RecallStatus.WITHDRAWN
    bench.append(message, born_ms=bench.now_ms() + 86_400_001)
