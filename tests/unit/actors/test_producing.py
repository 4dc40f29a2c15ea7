"""One send's budget, tries and outcome."""

from __future__ import annotations

import random

import pytest

from raymq.actors.backoff import Backoff
from raymq.actors.errors import (
    BrokerUnavailable,
    ConnectionLost,
    InvalidInput,
    NotMaster,
    NotStored,
    OutcomeUnknown,
    PermissionDenied,
    RayMQError,
    SequenceGap,
    ServerBusy,
    StoreFailed,
    Timeout,
    TopicNotFound,
    TopicUnavailable,
    WriteUnknown,
)
from raymq.actors.protocol import MessageQueue, SendStatus
from raymq.actors.sending.send_plan import LOOK_AGAIN_SECONDS, SendPlan, is_final_refusal
from tests.unit.actors.clock import FakeClock

A, B = MessageQueue("t", "a", 0), MessageQueue("t", "b", 0)


def coded(error: RayMQError, code: str) -> RayMQError:
    error.code = code
    return error


def plan(clock: FakeClock, timeout: float = 3.0, retries: int = 2) -> SendPlan:
    return SendPlan(clock, timeout, retries, Backoff(rng=random.Random(1)))


def test_a_broker_that_is_not_the_master_any_more_costs_time_and_no_try(clock: FakeClock) -> None:
    """Its group is about to have another one: three refusals within a millisecond would end the send."""
    made, queue = plan(clock), MessageQueue("t", "a", 0)
    waited = 0
    while (wait := made.failed(queue, NotMaster("a"), 0.0)) is not None and made.remaining > 0.5:
        assert wait == LOOK_AGAIN_SECONDS
        clock.advance(wait)
        waited += 1
    assert waited > 10
    assert made.attempts == []
    assert not made.in_doubt


@pytest.mark.parametrize(
    ("errors", "outcome"),
    [
        ([BrokerUnavailable("a")] * 3, NotStored),
        ([BrokerUnavailable("a"), ConnectionLost("a"), BrokerUnavailable("a")], OutcomeUnknown),
        (
            [Timeout("t", "silent"), coded(StoreFailed("s"), "SERVICE_NOT_AVAILABLE"), BrokerUnavailable("b")],
            OutcomeUnknown,
        ),
        (
            [
                coded(WriteUnknown("half"), "SYSTEM_ERROR"),
                coded(StoreFailed("s"), "SERVICE_NOT_AVAILABLE"),
                coded(StoreFailed("s"), "SERVICE_NOT_AVAILABLE"),
            ],
            OutcomeUnknown,
        ),
        ([coded(StoreFailed("s"), "SERVICE_NOT_AVAILABLE")] * 3, NotStored),
        ([coded(PermissionDenied("p"), "NO_PERMISSION")] * 3, NotStored),
    ],
)
def test_outcome_of_three_tries(errors: list[RayMQError], outcome: type[RayMQError]) -> None:
    clock = FakeClock()
    tried = plan(clock)
    waits = [tried.failed(A, error, 0.1) for error in errors]
    assert waits == [0.0, 0.0, None]
    error = tried.outcome()
    assert type(error) is outcome
    assert len(error.attempts) == 3
    assert "try 3" in str(error)


def test_a_final_answer_ends_the_tries_at_once() -> None:
    tried = plan(FakeClock())
    refused = coded(InvalidInput("body", "small", "large"), "INVALID_PARAMETER")
    assert tried.failed(A, refused, 0.0) is None
    assert is_final_refusal(refused, tried.attempts)


def test_no_such_topic_is_said_as_such() -> None:
    tried = plan(FakeClock())
    missing = coded(TopicNotFound("t"), "TOPIC_NOT_EXIST")
    for _ in range(3):
        tried.failed(None, missing, 0.0)
    assert is_final_refusal(missing, tried.attempts)


def test_that_nobody_may_write_is_said_as_such() -> None:
    tried = plan(FakeClock())
    forbidden = coded(PermissionDenied("t"), "NO_PERMISSION")
    tried.failed(A, forbidden, 0.0)
    tried.failed(None, forbidden, 0.0)
    assert is_final_refusal(forbidden, tried.attempts)
    tried.failed(B, BrokerUnavailable("b"), 0.0)
    assert not is_final_refusal(forbidden, tried.attempts)


def test_a_count_that_a_broker_has_forgotten_costs_no_try_once_in_each_queue() -> None:
    queues = [MessageQueue("t", "a", number) for number in range(2)]
    tried = plan(FakeClock(), timeout=3.0, retries=1)
    gap = coded(SequenceGap("message 0 comes next"), "SYSTEM_ERROR")
    assert [tried.failed(queue, gap, 0.0) for queue in queues] == [0.0, 0.0]
    assert tried.attempts == []
    assert [tried.failed(queue, gap, 0.0) for queue in queues] == [0.0, None]
    assert type(tried.outcome()) is NotStored


def test_a_count_that_a_broker_has_forgotten_is_a_try_of_a_batch_that_may_be_there() -> None:
    """It must not get another number."""
    queue = MessageQueue("t", "a", 0)
    tried = plan(FakeClock(), timeout=3.0, retries=1)
    assert tried.failed(queue, Timeout("a"), 0.0) == 0.0
    assert tried.failed(queue, coded(SequenceGap("message 0 comes next"), "SYSTEM_ERROR"), 0.0) is None
    assert type(tried.outcome()) is OutcomeUnknown


def test_a_name_server_that_has_just_started_costs_no_try() -> None:
    clock = FakeClock()
    tried = plan(clock, timeout=3.0, retries=0)
    learning = coded(ServerBusy("just started"), "SYSTEM_BUSY")
    while tried.remaining > LOOK_AGAIN_SECONDS + 0.01:
        wait = tried.failed(None, learning, 0.0)
        assert wait == LOOK_AGAIN_SECONDS
        clock.advance(wait)
    assert tried.attempts == []
    assert tried.failed(None, learning, 0.0) is None, "the budget is over"
    assert type(tried.outcome()) is NotStored
    assert [attempt.broker for attempt in tried.outcome().attempts] == [None]


def test_a_topic_whose_brokers_are_away_costs_no_try() -> None:
    clock = FakeClock()
    tried = plan(clock, timeout=3.0, retries=0)
    away = coded(TopicUnavailable("t", ["broker-a"]), "TOPIC_NOT_EXIST")
    assert tried.failed(None, away, 0.0) == LOOK_AGAIN_SECONDS
    assert tried.attempts == []
    clock.advance(3.0)
    assert tried.failed(None, away, 0.0) is None
    assert not is_final_refusal(away, tried.attempts), "it may be there later"
    assert type(tried.outcome()) is NotStored


def test_a_try_may_use_its_share_of_what_is_left() -> None:
    clock = FakeClock()
    tried = plan(clock, timeout=3.0, retries=2)
    assert tried.try_timeout() == pytest.approx(1.0)
    clock.advance(1.0)
    tried.failed(A, Timeout("t", "silent"), 1.0)
    assert tried.try_timeout() == pytest.approx(1.0)
    clock.advance(1.9)
    tried.failed(B, Timeout("t", "silent"), 1.9)
    assert tried.try_timeout() == pytest.approx(0.1)


def test_flow_control_waits_longer_each_time_within_the_budget() -> None:
    clock = FakeClock()
    tried = plan(clock, timeout=10.0, retries=9)
    waits = []
    while (wait := tried.failed(A, coded(ServerBusy("busy"), "SYSTEM_BUSY"), 0.0)) is not None:
        waits.append(wait)
        clock.advance(wait)
    assert sum(waits) < 10.0
    for number, wait in enumerate(waits):
        assert 0.8 * 1.6**number <= wait <= 1.2 * 1.6**number


def test_backoff_stays_in_its_bounds_and_forgets() -> None:
    backoff = Backoff(rng=random.Random(3))
    delays = [backoff.next_delay() for _ in range(30)]
    assert 0.8 <= delays[0] <= 1.2
    assert max(delays) <= 120.0
    assert delays[-1] > 90.0
    backoff.reset()
    assert backoff.next_delay() <= 1.2


def test_a_status_that_is_not_enough_is_a_try() -> None:
    tried = plan(FakeClock(), retries=1)
    error = tried.not_ok(A, SendStatus.FLUSH_DISK_TIMEOUT, 0.1)
    assert error is not None
    assert tried.in_doubt
    assert [attempt.code for attempt in tried.attempts] == ["FLUSH_DISK_TIMEOUT"]
    assert tried.not_ok(B, SendStatus.FLUSH_DISK_TIMEOUT, 0.1) is None
