"""Queue choice and failure isolation, as tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raymq.actors.core.selection import LatencyIsolation, NoIsolation, QueuePicker
from raymq.actors.protocol import MessageQueue
from tests.unit.actors.clock import FakeClock

QUEUES = [MessageQueue("t", broker, queue_id) for broker in ("a", "b") for queue_id in range(2)]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def isolation(clock: FakeClock) -> Iterator[LatencyIsolation]:
    made = LatencyIsolation(clock)
    yield made
    made.validate()


@pytest.mark.parametrize(
    ("latency_ms", "failed", "window_ms"),
    [
        (0, False, 0),
        (49.9, False, 0),
        (50, False, 0),
        (100, False, 0),
        (549, False, 0),
        (550, False, 2_000),
        (1_799, False, 2_000),
        (1_800, False, 5_000),
        (3_000, False, 6_000),
        (5_000, False, 10_000),
        (14_999, False, 10_000),
        (15_000, False, 30_000),
        (60_000, False, 30_000),
        (1, True, 10_000),
    ],
)
def test_window_of_each_latency(
    isolation: LatencyIsolation, clock: FakeClock, latency_ms: float, failed: bool, window_ms: int
) -> None:
    isolation.report("a", latency_ms, failed=failed, reachable=True)
    if window_ms:
        clock.advance(window_ms / 1000 - 0.001)
        assert not isolation.is_available("a")
        clock.advance(0.002)
    assert isolation.is_available("a")


def test_a_window_is_only_ever_extended(isolation: LatencyIsolation, clock: FakeClock) -> None:
    isolation.report("a", 15_000, failed=False, reachable=True)
    isolation.report("a", 1, failed=False, reachable=True)
    clock.advance(29)
    assert not isolation.is_available("a")


def test_a_success_makes_reachable_again(isolation: LatencyIsolation) -> None:
    isolation.report("a", 1, failed=True, reachable=False)
    assert not isolation.is_reachable("a")
    isolation.report("a", 1, failed=False, reachable=True)
    assert isolation.is_reachable("a")


def test_round_robin_without_failures() -> None:
    picker = QueuePicker(NoIsolation())
    assert [picker.pick(QUEUES) for _ in range(6)] == [*QUEUES, *QUEUES[:2]]


@pytest.mark.parametrize("start", range(8))
def test_a_retry_avoids_the_broker_that_failed(start: int) -> None:
    assert QueuePicker(NoIsolation(), start).pick(QUEUES, last=QUEUES[0]).broker == "b"


def test_with_one_broker_another_queue_of_it() -> None:
    picker = QueuePicker(NoIsolation())
    assert picker.pick(QUEUES[:2], last=QUEUES[0]) == QUEUES[1]
    assert picker.pick(QUEUES[:1], last=QUEUES[0]) == QUEUES[0]


def test_an_isolated_broker_gets_nothing_until_its_window_ends(isolation: LatencyIsolation, clock: FakeClock) -> None:
    picker = QueuePicker(isolation)
    isolation.report("a", 1, failed=True, reachable=False)
    assert {picker.pick(QUEUES).broker for _ in range(8)} == {"b"}
    clock.advance(10.001)
    assert {picker.pick(QUEUES).broker for _ in range(8)} == {"a", "b"}


def test_all_isolated_still_sends_somewhere_reachable_first(isolation: LatencyIsolation) -> None:
    picker = QueuePicker(isolation)
    isolation.report("a", 1, failed=True, reachable=False)
    isolation.report("b", 1, failed=True, reachable=True)
    assert {picker.pick(QUEUES).broker for _ in range(8)} == {"b"}
    isolation.report("b", 1, failed=True, reachable=False)
    assert {picker.pick(QUEUES).broker for _ in range(8)} == {"a", "b"}
