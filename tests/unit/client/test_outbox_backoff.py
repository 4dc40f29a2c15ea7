"""Test which errors are permanent for an outbox, and the backoff of topics whose batches fail."""

from __future__ import annotations

import pytest

from raymq.actors.errors import (
    BrokerUnavailable,
    ClientClosed,
    InvalidInput,
    NotStored,
    OutcomeUnknown,
    PermissionDenied,
    ProtocolError,
    QueueNotFound,
    RayMQError,
    ServerBusy,
    TopicNotFound,
    TopicUnavailable,
)
from raymq.actors.protocol import MessageQueue
from raymq.actors.sending.send_plan import SendParameters
from raymq.client.produce import outbox
from raymq.client.produce.outbox import _TopicBackoffs, is_permanent
from tests.unit.actors.clock import FakeClock


@pytest.mark.parametrize("by_broker", [True, False])
@pytest.mark.parametrize(
    ("error", "by_anybody", "by_a_broker"),
    [
        (TopicNotFound("t"), False, True),
        (QueueNotFound("q"), False, True),
        (PermissionDenied("t"), False, True),
        (ProtocolError("garbage"), False, True),
        (NotStored("no"), False, False),
        (OutcomeUnknown("who knows"), False, False),
        (TopicUnavailable("t", ["a"]), False, False),
        (BrokerUnavailable("a"), False, False),
        (ServerBusy("later"), False, False),
        (ClientClosed("over"), False, False),
        (InvalidInput("body", "1 or more", 0), True, True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, RayMQError) else None,
)
def test_only_refusals_by_a_broker_are_permanent(
    error: RayMQError, by_anybody: bool, by_a_broker: bool, by_broker: bool
) -> None:
    error.refused_by = "broker-a" if by_broker else None
    terms = SendParameters(1.0, 0, queue=MessageQueue("t", "broker-a", 0))
    assert is_permanent(error, terms) == (by_a_broker if by_broker else by_anybody)


@pytest.mark.parametrize(
    "terms", [SendParameters(1.0, 0), SendParameters(1.0, 0, sharding_key="k")], ids=["any queue", "a key's queue"]
)
@pytest.mark.parametrize("error", [QueueNotFound("q"), PermissionDenied("t")])
def test_refusal_is_not_permanent_if_another_queue_may_take_it(error: RayMQError, terms: SendParameters) -> None:
    error.refused_by = "broker-a"
    assert not is_permanent(error, terms)


def test_topic_backoff_grows_for_each_topic_separately() -> None:
    clock = FakeClock()
    backoffs = _TopicBackoffs(clock)
    assert (backoffs.topics(), backoffs.seconds(1.0)) == ([], 1.0)
    waits = []
    for _ in range(10):
        backoffs.failed("t")
        assert backoffs.topics() == ["t"]
        waits.append(backoffs.seconds(100.0))
        clock.advance(waits[-1] + 0.001)
        assert backoffs.topics() == []
        assert backoffs.seconds(1.0) == 1.0
    assert 0.7 < waits[0] < 1.3
    assert max(waits) <= outbox._REST_SECONDS
    assert waits[-1] > 5.0
    backoffs.failed("u")
    backoffs.failed("t")
    assert backoffs.topics() == ["t", "u"]
    backoffs.stored("t")
    assert backoffs.topics() == ["u"]
