"""Test that listing the waiting messages takes short steps, however many wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq.actors.broker.core.delay import delayed_messages
from raymq.actors.broker.core.delay.delayed_messages import BEGIN, DelayedMessages, DelayedPage, Position
from raymq.storage.timers.timer_entry import MIN_KEY
from tests.unit.actors.timer_bench import DAY, HOUR, TimerBench

FIRST_TIMER: Position = (1, 0, MIN_KEY)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TimerBench]:
    bench = TimerBench(tmp_path)
    yield bench
    bench.close()


class Listing:
    """Lists the waiting messages, and counts how many records each step reads."""

    def __init__(self, bench: TimerBench, monkeypatch: pytest.MonkeyPatch) -> None:
        self._listed = DelayedMessages(bench.store, bench.core.schedule, bench.core.timers)
        self.reads: list[int] = []
        read_at = bench.store.read_at

        def counted(place: int) -> object:
            self.reads[-1] += 1
            return read_at(place)

        monkeypatch.setattr(bench.store, "read_at", counted)

    def page(self, begin: Position = BEGIN, topic: str | None = None, most: int = 1_000) -> DelayedPage:
        steps = self._listed.page_steps(begin, topic, most)
        while True:
            self.reads.append(0)
            try:
                next(steps)
            except StopIteration as end:
                page: DelayedPage = end.value
                return page

    def all(self, topic: str | None = None, most: int = 1_000) -> list[bytes]:
        found: list[bytes] = []
        begin: Position | None = BEGIN
        while begin is not None:
            page = self.page(begin, topic, most)
            found, begin = found + page.records, page.following
        return found


@pytest.mark.parametrize("in_run", [False, True])
@pytest.mark.parametrize("spread", [False, True])
def test_each_step_reads_few_messages(
    bench: TimerBench, monkeypatch: pytest.MonkeyPatch, spread: bool, in_run: bool
) -> None:
    for number in range(10):
        bench.send(*(b"%d" % each for each in range(100)), after=HOUR + number * spread)
    if in_run:
        monkeypatch.setattr("raymq.storage.timers.timer_log.FOLD_ENTRIES", 1)
        bench.checkpoint()
        bench.send(b"fresh", after=HOUR)
    listing = Listing(bench, monkeypatch)
    assert len(set(listing.all())) == 1_000 + in_run
    assert not listing.all("other topic")
    assert max(listing.reads) <= 64
    listing.reads.clear()
    assert len(listing.page(FIRST_TIMER, most=10).records) <= 64
    assert sum(listing.reads) <= 64, "a page reads no more than it needs"


def test_messages_are_listed_by_due_time(bench: TimerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    for hours in (3, 1, 2):
        bench.send(*(b"%d" % each for each in range(70)), after=hours * HOUR)
    page = Listing(bench, monkeypatch).page()
    assert page.due_ms == sorted(page.due_ms)
    assert (len(page.records), page.following) == (210, None)


def test_messages_with_the_same_key_stay_on_one_page_in_several_steps(
    bench: TimerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    [message] = bench.send(b"first", after=DAY)
    bench.append(*[message] * 200)
    bench.send(b"last", after=2 * DAY)
    listing = Listing(bench, monkeypatch)
    page = listing.page(FIRST_TIMER, most=10)
    assert (len(page.records), page.following) != (1, None)
    assert len(page.records) >= 201
    assert max(listing.reads) <= 64
    assert len(listing.all()) == 202


def test_steps_of_large_messages_end_earlier(bench: TimerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_messages, "_BYTES_AT_ONCE", 1_000)
    bench.send(*(bytes(600) for _ in range(9)), after=HOUR)
    listing = Listing(bench, monkeypatch)
    assert len(listing.all()) == 9
    assert max(listing.reads) == 2
