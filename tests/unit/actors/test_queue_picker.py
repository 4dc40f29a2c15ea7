"""Test the choice of a queue with every isolation strategy: each send gets a queue."""

from __future__ import annotations

from collections import Counter

import pytest

from raymq.actors.protocol import MessageQueue, QueueData, TopicRoute
from raymq.actors.route_cache import RouteCache
from raymq.actors.sending.isolation import (
    ISOLATION_STRATEGIES,
    Isolation,
    LatencyIsolation,
    NoIsolation,
    QueuePicker,
    TryOutcome,
    make_isolation,
)
from raymq.actors.sending.send_plan import SendParameters
from raymq.actors.sending.sender import make_sender, queue_of_sharding_key
from raymq.actors.wire.connection_pool import ConnectionPool
from tests.unit.actors.clock import FakeClock

QUEUES = [MessageQueue("t", broker, queue_id) for broker in ("a", "b") for queue_id in range(2)]
ISOLATING = sorted(name for name in ISOLATION_STRATEGIES if name)


@pytest.fixture(params=ISOLATING)
def isolation(request: pytest.FixtureRequest, clock: FakeClock) -> Isolation:
    return make_isolation(request.param, clock)


def brokers(picker: QueuePicker) -> set[str]:
    return {picker.pick(QUEUES).broker for _ in range(8)}


def test_round_robin_without_failures() -> None:
    picker = QueuePicker(NoIsolation())
    assert [picker.pick(QUEUES) for _ in range(6)] == [*QUEUES, *QUEUES[:2]]


@pytest.mark.parametrize("start", range(8))
def test_retry_avoids_failed_broker(start: int) -> None:
    assert QueuePicker(NoIsolation(), start).pick(QUEUES, last=QUEUES[0]).broker == "b"


def test_retry_with_one_broker_uses_another_queue() -> None:
    picker = QueuePicker(NoIsolation())
    assert picker.pick(QUEUES[:2], last=QUEUES[0]) == QUEUES[1]
    assert picker.pick(QUEUES[:1], last=QUEUES[0]) == QUEUES[0]


def test_failed_broker_is_isolated_and_returns_later(isolation: Isolation, clock: FakeClock) -> None:
    picker = QueuePicker(isolation)
    isolation.report("a", TryOutcome.SILENT, 1)
    assert brokers(picker) == {"b"}
    clock.advance(61)
    assert brokers(picker) == {"a", "b"}


def test_all_brokers_are_used_when_all_are_isolated(isolation: Isolation) -> None:
    picker = QueuePicker(isolation)
    isolation.report("a", TryOutcome.SILENT, 1)
    isolation.report("b", TryOutcome.REFUSED, 1)
    assert brokers(picker) == {"a", "b"}


def test_recovered_broker_is_used_at_once(isolation: Isolation) -> None:
    picker = QueuePicker(isolation)
    isolation.report("a", TryOutcome.SILENT, 1)
    assert isolation.suspects() == ["a"]
    isolation.recovered("a")
    assert brokers(picker) == {"a", "b"}
    assert isolation.suspects() == []


def test_broker_that_answers_errors_is_not_probed(isolation: Isolation) -> None:
    isolation.report("a", TryOutcome.REFUSED, 1)
    assert isolation.rank("a")
    assert isolation.suspects() == []


def test_expired_suspect_is_not_probed(isolation: Isolation, clock: FakeClock) -> None:
    isolation.report("a", TryOutcome.SILENT, 1)
    clock.advance(61)
    assert isolation.suspects() == []


def test_slow_broker_is_preferred_to_failed_one(clock: FakeClock) -> None:
    isolation = LatencyIsolation(clock)
    picker = QueuePicker(isolation)
    isolation.report("a", TryOutcome.SILENT, 1)
    isolation.report("b", TryOutcome.ANSWERED, 3_000)
    assert brokers(picker) == {"b"}


def test_no_isolation_is_round_robin(clock: FakeClock) -> None:
    isolation = make_isolation(None, clock)
    isolation.report("a", TryOutcome.SILENT, 1)
    assert brokers(QueuePicker(isolation)) == {"a", "b"}
    assert isolation.suspects() == []


def test_sharding_keys_spread_evenly_and_keep_their_queue() -> None:
    queues = [MessageQueue("t", broker, queue_id) for broker in ("a", "b") for queue_id in range(4)]
    keys = [f"customer-{number}" for number in range(8_000)]
    counts = Counter(queue_of_sharding_key(queues, key) for key in keys)
    assert counts.keys() == set(queues)
    assert max(counts.values()) < 1.2 * min(counts.values())
    # Java's hash code of the key, as a RocketMQ client's SelectMessageQueueByHash takes it.
    assert queue_of_sharding_key(queues, "hello") == queues[99_162_322 % 8]
    assert queue_of_sharding_key(queues, "polygenelubricants") in queues, "the hash code that has no absolute value"


def test_background_send_stays_at_broker_until_refused() -> None:
    """Allow any broker after a refusal."""
    pool = ConnectionPool()
    sender = make_sender(pool, RouteCache(pool, ["n:1"]), None)
    route = TopicRoute("t", tuple(QueueData(broker, 1, 1) for broker in ("a", "b")), {"a": "a:1", "b": "b:1"})
    last, terms = MessageQueue("t", "a", 0), SendParameters(10.0, 2, same_broker=True)
    assert {sender.choose(route, terms, last, stays=True).broker for _ in range(4)} == {"a"}
    assert {sender.choose(route, terms, last, stays=False).broker for _ in range(4)} == {"b"}
