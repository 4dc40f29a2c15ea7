"""Test that ordered pop delivers no message before earlier messages that are redelivered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from raymq.actors.broker.core.pop.pop_request import PopRequest
from tests.store_records import flip_byte, log_file
from tests.unit.actors.pop_bench import PopBench, bodies

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[PopBench]:
    with closing(PopBench(tmp_path)) as made:
        yield made


def test_new_message_does_not_overtake_one_over_size_limit(bench: PopBench) -> None:
    long = [number * 400 for number in (b"0", b"1")]
    bench.send(*long)
    bench.receive(2, ordered=True, invisible=10)
    bench.send(b"2")
    bench.clock.advance(10)
    first = bench.receive(ordered=True, max_bytes=800)
    assert bodies(first) == long[:1], "there is space for 2, which comes behind 1"
    bench.ack(*first)
    assert bodies(bench.receive(ordered=True)) == [long[1], b"2"]


def test_new_message_does_not_overtake_after_damaged_one(bench: PopBench, tmp_path: Path) -> None:
    bench.send(b"damaged", b"1", b"2", b"3")
    bench.receive(3, ordered=True, invisible=10)
    bench.clock.advance(10)
    bench.kill()
    log = log_file(tmp_path)
    flip_byte(log, log.read_bytes().index(b"damaged"))
    assert bench.receive(1, ordered=True) == []
    assert bodies(bench.receive(1, ordered=True)) == [b"1"]


@pytest.mark.parametrize("ordered", [False, True])
def test_pop_of_only_damaged_messages_reports_has_more(bench: PopBench, tmp_path: Path, ordered: bool) -> None:
    bench.send(b"damaged", b"1")
    bench.receive(2, ordered=ordered, invisible=10)
    bench.clock.advance(10)
    bench.kill()
    log = log_file(tmp_path)
    flip_byte(log, log.read_bytes().index(b"damaged"))
    request = PopRequest("g", "t", range(1), 1, 1 << 20, 30_000, 16, ordered=ordered)
    popped = bench.pop.receive(request)
    assert not popped.queues
    assert popped.has_more, "nobody wakes a parked pop for what is ready already"
    assert [queue.taken.offsets for queue in bench.pop.receive(request).queues] == [[1]]


def test_handle_of_repeated_attempt_is_stale(
    bench: PopBench,
) -> None:
    """Guard against a stale handle that acknowledged a message waiting for redelivery."""
    bench.send(b"0", b"1", b"2")
    lost = bench.receive(ordered=True, attempt_id="one")
    bench.clock.advance(1)
    first = bench.receive(1, ordered=True, attempt_id="one")
    assert bodies(first) == [b"0"]
    assert bench.ack(*lost) == [False] * 3
    assert bench.change(lost[1], 60) is None
    assert bench.receive(ordered=True) == [], "the first one is out"
    bench.ack(*first)
    assert bodies(bench.receive(ordered=True)) == [b"1", b"2"]
