"""Queue choice over every isolation strategy: a send always goes somewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from raymq.actors.protocol import MessageQueue, QueueData, TopicRoute
from raymq.actors.route_cache import RouteCache
from raymq.actors.sending.isolation import (
    ISOLATION_STRATEGIES,
    Isolation,
    LatencyIsolation,
    NoIsolation,
    TryOutcome,
    make_isolation,
)
from raymq.actors.sending.queue_picker import QueuePicker
from raymq.actors.sending.sender import SendParameters, make_sender, queue_of_sharding_key
from raymq.actors.wire.connection_pool import ConnectionPool
from tests.unit.actors.clock import FakeClock
from tests.validation import validated

QUEUES = [MessageQueue("t", broker, queue_id) for broker in ("a", "b") for queue_id in range(2)]
ISOLATING = sorted(name for name in ISOLATION_STRATEGIES if name)


@pytest.fixture(params=ISOLATING)
def isolation(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[Isolation]:
    with validated(make_isolation(request.param, clock)) as made:
        yield made


def brokers(picker: QueuePicker) -> set[str]:
    return {picker.pick(QUEUES).broker for _ in range(8)}


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


def test_a_failed_broker_gets_nothing_and_comes_back_by_itself(isolation: Isolation, clock: FakeClock) -> None:
    picker = QueuePicker(isolation)
    isolation.report("a", TryOutcome.SILENT, 1)
    assert brokers(picker) == {"b"}
    clock.advance(61)
    assert brokers(picker) == {"a", "b"}


def test_all_isolated_still_sends_somewhere(isolation: Isolation) -> None:
    picker = QueuePicker(isolation)
    isolation.report("a", TryOutcome.SILENT, 1)
    isolation.report("b", TryOutcome.REFUSED, 1)
    assert brokers(picker) == {"a", "b"}


def test_a_probe_ends_an_isolation_early(isolation: Isolation) -> None:
    picker = QueuePicker(isolation)
    isolation.report("a", TryOutcome.SILENT, 1)
    assert isolation.suspects() == ["a"]
    isolation.recovered("a")
    assert brokers(picker) == {"a", "b"}
    assert isolation.suspects() == []


def test_a_broker_that_answers_with_errors_is_not_probed(isolation: Isolation) -> None:
    isolation.report("a", TryOutcome.REFUSED, 1)
    assert isolation.rank("a")
    assert isolation.suspects() == []


def test_a_suspect_that_came_back_by_itself_is_not_probed(isolation: Isolation, clock: FakeClock) -> None:
    isolation.report("a", TryOutcome.SILENT, 1)
    clock.advance(61)
    assert isolation.suspects() == []


def test_a_slow_broker_is_preferred_to_a_failed_one(clock: FakeClock) -> None:
    isolation = LatencyIsolation(clock)
    picker = QueuePicker(isolation)
    isolation.report("a", TryOutcome.SILENT, 1)
    isolation.report("b", TryOutcome.ANSWERED, 3_000)
    assert brokers(picker) == {"b"}


def test_none_is_plain_round_robin(clock: FakeClock) -> None:
    isolation = make_isolation(None, clock)
    isolation.report("a", TryOutcome.SILENT, 1)
    assert brokers(QueuePicker(isolation)) == {"a", "b"}
    assert isolation.suspects() == []


def test_sharding_keys_spread_evenly_and_each_keeps_its_queue() -> None:
    queues = [MessageQueue("t", broker, queue_id) for broker in ("a", "b") for queue_id in range(4)]
    keys = [f"customer-{number}" for number in range(8_000)]
    counts = Counter(queue_of_sharding_key(queues, key) for key in keys)
    assert counts.keys() == set(queues)
    assert max(counts.values()) < 1.2 * min(counts.values())
    # Java's hash code of the key, as a RocketMQ client's SelectMessageQueueByHash takes it.
    assert queue_of_sharding_key(queues, "hello") == queues[99_162_322 % 8]
    assert queue_of_sharding_key(queues, "polygenelubricants") in queues, "the hash code that has no absolute value"


def test_a_send_in_the_background_stays_where_it_may_be_stored() -> None:
    """After a refusal any broker may take the message."""
    pool = ConnectionPool()
    sender = make_sender(pool, RouteCache(pool, ["n:1"]), None)
    route = TopicRoute("t", tuple(QueueData(broker, 1, 1) for broker in ("a", "b")), {"a": "a:1", "b": "b:1"})
    last, terms = MessageQueue("t", "a", 0), SendParameters(10.0, 2, same_broker=True)
    assert {sender.choose(route, terms, last, stays=True).broker for _ in range(4)} == {"a"}
    assert {sender.choose(route, terms, last, stays=False).broker for _ in range(4)} == {"b"}
