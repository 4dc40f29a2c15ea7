"""What was called back a moment ago, and the tries of its send that were under way then."""

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
def test_what_was_sent_before_is_refused(
    topic: str, unique_key: str | None, born: float, after: float, refused: bool
) -> None:
    clock = FakeClock(1_000.0)
    what = RecentRecalls(clock)
    what.check("t", "k", 0)
    what.add("t", "k")
    clock.advance(after)
    if refused:
        with pytest.raises(MessageIllegal, match="unique_key"):
            what.check(topic, unique_key, int(born * 1000))
    else:
        what.check(topic, unique_key, int(born * 1000))


def test_called_back_again_it_is_remembered_from_then_on() -> None:
    clock = FakeClock()
    what = RecentRecalls(clock)
    for _ in range(3):
        what.add("t", "k")
        clock.advance(RECALL_WINDOW_SECONDS - 1)
    with pytest.raises(MessageIllegal):
        what.check("t", "k", 0)


def test_no_more_is_remembered_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_recalls, "MOST", 3)
    clock = FakeClock()
    what = RecentRecalls(clock)
    for number in range(5):
        what.add("t", str(number))
    for number in (0, 1):
        what.check("t", str(number), 0)
    for number in (2, 3, 4):
        with pytest.raises(MessageIllegal):
            what.check("t", str(number), 0)
    clock.advance(RECALL_WINDOW_SECONDS + 1)
    what.add("t", "new")
    assert len(what._at) == 1


def test_a_long_unique_key_takes_no_more_memory_than_a_short_one() -> None:
    """A hundred thousand calls back of messages that never were, each of 150,000 characters, were 14 GiB."""
    what = RecentRecalls(FakeClock())
    tracemalloc.start()
    for number in range(300):
        what.add("t", f"{number:08d}" + "x" * 150_000)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 300 * 1_000
    with pytest.raises(MessageIllegal):
        what.check("t", f"{7:08d}" + "x" * 150_000, 0)
    what.check("t", f"{7:08d}" + "x" * 149_999, 0)
    what.add("t", "\ud800")
    with pytest.raises(MessageIllegal):
        what.check("t", "\ud800", 0)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("after", [0.0, 10.0])
def test_a_try_that_was_under_way_stores_nothing(bench: TimerBench, stored: bool, after: float) -> None:
    """With another copy here that was withdrawn, and without: then another broker has it."""
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


def test_a_foreign_try_that_was_under_way_stores_nothing(bench: TimerBench) -> None:
    message = Message("t", b"m", deliver_at=bench.clock.now + 5)
    assert bench.recall(message) is RecallStatus.UNKNOWN
    told = {"UNIQ_KEY": message.unique_key, "TIMER_DELAY_SEC": "1"}
    with pytest.raises(MessageIllegal, match="unique_key"):
        bench.core.send_processor.accept(InboundMessage("t", 0, b"m", told, bench.now_ms() - 1, HOST))
    bench.clock.advance(10)
    assert bench.deliver() == []


def test_what_was_delivered_may_be_sent_again(bench: TimerBench) -> None:
    message = Message("t", b"m", deliver_at=bench.clock.now + 5)
    bench.append(message)
    bench.clock.advance(5)
    assert bench.deliver() == [b"m"]
    assert bench.recall(message) is RecallStatus.DELIVERED
    bench.append(message)
    assert len(bench.delivered()) == 2


@pytest.mark.parametrize("ahead", [-5.0, 0.0, 5.0, 86_400.0])
def test_a_late_try_is_refused_whatever_its_clients_clock_says(bench: TimerBench, ahead: float) -> None:
    """All tries of one send carry the same time, which is the client's and not ours."""
    message = Message("t", b"m", deliver_at=bench.clock.now + 5)
    born_ms = bench.now_ms() + int(ahead * 1000)
    bench.append(message, born_ms=born_ms)
    bench.clock.advance(0.5)
    for _ in range(2):  # called back again it is still the same message
        assert bench.recall(message) is RecallStatus.WITHDRAWN
    with pytest.raises(MessageIllegal, match="unique_key"):
        bench.append(message, born_ms=born_ms)
    bench.clock.advance(10)
    assert bench.deliver() == []


def test_a_message_that_is_sent_again_by_a_clock_that_is_ahead_is_another_one(bench: TimerBench) -> None:
    message = Message("t", b"m", deliver_at=bench.clock.now + 5)
    bench.append(message, born_ms=bench.now_ms() + 86_400_000)
    assert bench.recall(message) is RecallStatus.WITHDRAWN
    bench.append(message, born_ms=bench.now_ms() + 86_400_001)
