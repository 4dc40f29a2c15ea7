"""One send's budget, tries and outcome."""

from __future__ import annotations

import random
from typing import Any

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
    TooFewInSync,
    TopicNotFound,
    TopicUnavailable,
    WriteUnknown,
)
from raymq.actors.protocol import MessageQueue, SendStatus
from raymq.actors.sending.send_plan import SendPlan
from tests.unit.actors.clock import FakeClock

A, B = MessageQueue("t", "a", 0), MessageQueue("t", "b", 0)


def coded(error: RayMQError, code: str) -> RayMQError:
    error.code = code
    return error


def plan(clock: FakeClock, timeout: float = 3.0, retries: int = 2, **options: Any) -> SendPlan:
    rng = random.Random(1)
    pauses = Backoff(first=0.05, cap=1.0, rng=rng)
    return SendPlan(clock, timeout, retries, Backoff(rng=rng), pauses=pauses, **options)


def pauses_until_it_ends(
    made: SendPlan, clock: FakeClock, queue: MessageQueue | None, error: RayMQError
) -> list[float]:
    """The pauses of a send each of whose tries ends so at once."""
    waits: list[float] = []
    while (wait := made.failed(queue, error, 0.0)) is not None:
        waits.append(wait)
        clock.advance(wait)
        assert len(waits) < 1_000
    return waits


STORED_NOTHING = [
    (A, BrokerUnavailable("a", "cannot connect: refused")),
    (A, BrokerUnavailable("a", "no connection within 3 s")),
    (A, BrokerUnavailable("a", "the server is stopping")),
    (A, NotMaster("a")),
    (A, coded(TooFewInSync("1 of 2 in sync"), "SYSTEM_ERROR")),
    (None, BrokerUnavailable("name server")),
    (None, coded(ServerBusy("the name server has just started"), "SYSTEM_BUSY")),
    (None, coded(TopicUnavailable("t", ["broker-a"]), "TOPIC_NOT_EXIST")),
]


@pytest.mark.parametrize(("queue", "error"), STORED_NOTHING)
@pytest.mark.parametrize(("retries", "timeout"), [(0, 10.0), (2, 10.0), (1, 3.0), (0, 60.0)])
def test_a_try_that_stored_nothing_is_repeated_for_the_budget(
    queue: MessageQueue | None, error: RayMQError, retries: int, timeout: float
) -> None:
    clock = FakeClock()
    made = plan(clock, timeout, retries)
    waits = pauses_until_it_ends(made, clock, queue, error)
    assert timeout - 0.5 <= sum(waits) <= timeout
    for number, wait in enumerate(waits[:-1]):
        assert 0.8 * min(1.0, 0.05 * 1.6**number) <= wait <= 1.0
    assert made.counted == 0
    assert not made.is_in_doubt
    assert type(made.outcome()) is NotStored
    assert len(made.attempts) <= 64


def test_tries_that_stored_nothing_leave_the_retries_to_others() -> None:
    clock = FakeClock()
    made = plan(clock, 10.0, 2)
    for _ in range(4):
        assert made.failed(A, BrokerUnavailable("a"), 0.0) is not None
        clock.advance(0.5)
    assert made.failed(A, Timeout("a"), 1.0) == 0.0
    assert made.failed(B, BrokerUnavailable("b"), 0.0) is not None
    assert made.failed(B, Timeout("b"), 1.0) == 0.0
    assert made.failed(A, Timeout("a"), 1.0) is None, "the third try that counts is the last one"
    assert type(made.outcome()) is OutcomeUnknown


def test_without_retries_nothing_follows_an_unknown_outcome() -> None:
    made = plan(FakeClock(), 10.0, 0)
    assert made.failed(A, BrokerUnavailable("a"), 0.0) is not None
    assert made.failed(A, ConnectionLost("a"), 0.0) is None
    assert type(made.outcome()) is OutcomeUnknown


def test_a_reset_counts_and_the_next_try_comes_a_moment_later() -> None:
    made = plan(FakeClock(), 10.0, 1)
    wait = made.failed(A, ConnectionLost("a"), 0.0)
    assert wait is not None
    assert 0.04 <= wait <= 0.06
    assert made.counted == 1
    assert made.failed(A, ConnectionLost("a"), 0.0) is None


@pytest.mark.parametrize("error", [ConnectionLost("a"), Timeout("a")])
@pytest.mark.parametrize("retries", [0, 2])
def test_an_idempotent_send_repeats_unknown_tries_for_its_budget(error: RayMQError, retries: int) -> None:
    clock = FakeClock()
    made = plan(clock, 10.0, retries, is_idempotent=True)
    waits = pauses_until_it_ends(made, clock, A, error)
    assert 9.5 <= sum(waits) <= 10.0
    assert type(made.outcome()) is OutcomeUnknown


def test_a_write_that_broke_off_counts_for_no_repeat_of_it_is_recognised() -> None:
    made = plan(FakeClock(), 10.0, 0, is_idempotent=True)
    assert made.failed(A, coded(WriteUnknown("half"), "SYSTEM_ERROR"), 0.0) is None


@pytest.mark.parametrize("timeout", [0.0, -1.0])
def test_a_send_whose_time_is_over_ends_at_once(timeout: float) -> None:
    made = plan(FakeClock(), timeout, 2, is_idempotent=True)
    assert made.failed(A, BrokerUnavailable("a"), 0.0) is None
    assert made.failed(A, Timeout("a"), 0.0) is None


def test_a_send_that_does_not_wait_counts_every_try() -> None:
    made = plan(FakeClock(), 10.0, 1, waits=False)
    assert made.failed(A, BrokerUnavailable("a"), 0.0) == 0.0
    assert made.failed(A, BrokerUnavailable("a"), 0.0) is None
    once = plan(FakeClock(), 10.0, 0, waits=False)
    assert once.failed(None, BrokerUnavailable("name server"), 0.0) is None


@pytest.mark.parametrize(
    ("timeout", "retries", "expected"),
    [
        (10.0, 2, [3.0, 3.0, 4.0]),
        (60.0, 2, [3.0, 3.0, 54.0]),
        (60.0, 0, [60.0]),
        (10.0, 1, [3.0, 7.0]),
        (3.0, 2, [1.0, 1.0, 1.0]),
    ],
)
def test_a_try_gets_3_seconds_while_another_is_left(timeout: float, retries: int, expected: list[float]) -> None:
    clock = FakeClock()
    made = plan(clock, timeout, retries)
    found = []
    for _ in expected:
        found.append(made.try_timeout())
        clock.advance(found[-1])
        made.failed(A, Timeout("a"), found[-1])
    assert found == pytest.approx(expected)


def test_an_idempotent_sends_last_tries_get_all_that_is_left() -> None:
    clock = FakeClock()
    made = plan(clock, 60.0, 1, is_idempotent=True)
    assert made.try_timeout() == 3.0
    clock.advance(3.0)
    made.failed(A, Timeout("a"), 3.0)
    assert made.try_timeout() == pytest.approx(57.0)


def test_reaching_a_broker_gets_3_seconds_for_it_never_counts() -> None:
    assert plan(FakeClock(), 60.0, 0).reach_timeout() == 3.0
    assert plan(FakeClock(), 4.0, 0).reach_timeout() == 2.0
    assert plan(FakeClock(), 4.0, 0, waits=False).reach_timeout() == 4.0


def test_an_error_of_a_long_send_lists_its_first_and_last_tries() -> None:
    clock = FakeClock()
    made = plan(clock, 600.0, 0)
    pauses_until_it_ends(made, clock, A, BrokerUnavailable("a"))
    assert 32 <= len(made.outcome().attempts) <= 64
    assert len(str(made.outcome()).splitlines()) < 20


def test_a_refusal_behind_tries_that_reached_nobody_is_said_as_such() -> None:
    made = plan(FakeClock(), 10.0, 2)
    made.failed(A, BrokerUnavailable("a"), 0.0)
    refused = coded(InvalidInput("body", "small", "large"), "INVALID_PARAMETER")
    assert made.failed(A, refused, 0.0) is None
    assert made.is_final_refusal(refused)


@pytest.mark.parametrize(
    ("errors", "outcome"),
    [
        ([Timeout("a"), ConnectionLost("a"), Timeout("a")], OutcomeUnknown),
        (
            [
                Timeout("t", "silent"),
                coded(StoreFailed("s"), "SERVICE_NOT_AVAILABLE"),
                coded(PermissionDenied("p"), "NO_PERMISSION"),
            ],
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
    assert [wait is None for wait in waits] == [False, False, True]
    error = tried.outcome()
    assert type(error) is outcome
    assert len(error.attempts) == 3
    assert "try 3" in str(error)
    assert str(error).splitlines()[0].endswith(f": {error.attempts[-1].error}"), "all that a log may show"


def test_a_final_answer_ends_the_tries_at_once() -> None:
    tried = plan(FakeClock())
    refused = coded(InvalidInput("body", "small", "large"), "INVALID_PARAMETER")
    assert tried.failed(A, refused, 0.0) is None
    assert tried.is_final_refusal(refused)


def test_no_such_topic_is_said_as_such() -> None:
    tried = plan(FakeClock())
    missing = coded(TopicNotFound("t"), "TOPIC_NOT_EXIST")
    for _ in range(3):
        tried.failed(None, missing, 0.0)
    assert tried.is_final_refusal(missing)


def test_that_nobody_may_write_is_said_as_such() -> None:
    tried = plan(FakeClock())
    forbidden = coded(PermissionDenied("t"), "NO_PERMISSION")
    tried.failed(A, forbidden, 0.0)
    tried.failed(None, forbidden, 0.0)
    assert tried.is_final_refusal(forbidden)
    tried.failed(B, BrokerUnavailable("b"), 0.0)
    assert not tried.is_final_refusal(forbidden)


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


def test_flow_control_waits_longer_each_time_within_the_budget() -> None:
    clock = FakeClock()
    tried = plan(clock, timeout=60.0, retries=1)
    waits = pauses_until_it_ends(tried, clock, A, coded(ServerBusy("busy"), "SYSTEM_BUSY"))
    assert 20.0 < sum(waits) < 60.0
    assert len(waits) > 4, "it does not count against the retries"
    for number, wait in enumerate(waits):
        assert 0.8 * 1.6**number <= wait <= 1.2 * 1.6**number


def test_without_retries_flow_control_is_the_answer() -> None:
    tried = plan(FakeClock(), retries=0)
    assert tried.failed(A, coded(ServerBusy("busy"), "SYSTEM_BUSY"), 0.0) is None
    assert [attempt.code for attempt in tried.outcome().attempts] == ["SYSTEM_BUSY"]


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
    error = tried.record_bad_status(A, SendStatus.FLUSH_DISK_TIMEOUT, 0.1)
    assert error is not None
    assert tried.is_in_doubt
    assert [attempt.code for attempt in tried.attempts] == ["FLUSH_DISK_TIMEOUT"]
    assert tried.record_bad_status(B, SendStatus.FLUSH_DISK_TIMEOUT, 0.1) is None
