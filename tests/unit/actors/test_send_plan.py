"""Test the time budget, tries and outcome of a send."""

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


def with_code(error: RayMQError, code: str) -> RayMQError:
    error.code = code
    return error


def make_plan(clock: FakeClock, timeout: float = 3.0, retries: int = 2, **options: Any) -> SendPlan:
    rng = random.Random(1)
    pauses = Backoff(first=0.05, cap=1.0, rng=rng)
    return SendPlan(clock, timeout, retries, Backoff(rng=rng), pauses=pauses, **options)


def collect_pauses(made: SendPlan, clock: FakeClock, queue: MessageQueue | None, error: RayMQError) -> list[float]:
    """Return the pauses of a send whose tries all fail with `error` at once."""
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
    (A, with_code(TooFewInSync("1 of 2 in sync"), "SYSTEM_ERROR")),
    (None, BrokerUnavailable("name server")),
    (None, with_code(ServerBusy("the name server has just started"), "SYSTEM_BUSY")),
    (None, with_code(TopicUnavailable("t", ["broker-a"]), "TOPIC_NOT_EXIST")),
]


@pytest.mark.parametrize(("queue", "error"), STORED_NOTHING)
@pytest.mark.parametrize(("retries", "timeout"), [(0, 10.0), (2, 10.0), (1, 3.0), (0, 60.0)])
def test_try_that_stored_nothing_is_repeated_within_timeout(
    queue: MessageQueue | None, error: RayMQError, retries: int, timeout: float
) -> None:
    clock = FakeClock()
    made = make_plan(clock, timeout, retries)
    waits = collect_pauses(made, clock, queue, error)
    assert timeout - 0.5 <= sum(waits) <= timeout
    for number, wait in enumerate(waits[:-1]):
        assert 0.8 * min(1.0, 0.05 * 1.6**number) <= wait <= 1.0
    assert made.counted == 0
    assert not made.is_in_doubt
    assert type(made.outcome()) is NotStored
    assert len(made.attempts) <= 64


def test_tries_that_stored_nothing_do_not_count_as_retries() -> None:
    clock = FakeClock()
    made = make_plan(clock, 10.0, 2)
    for _ in range(4):
        assert made.failed(A, BrokerUnavailable("a"), 0.0) is not None
        clock.advance(0.5)
    assert made.failed(A, Timeout("a"), 1.0) == 0.0
    assert made.failed(B, BrokerUnavailable("b"), 0.0) is not None
    assert made.failed(B, Timeout("b"), 1.0) == 0.0
    assert made.failed(A, Timeout("a"), 1.0) is None, "the third try that counts is the last one"
    assert type(made.outcome()) is OutcomeUnknown


def test_unknown_outcome_without_retries_ends_send() -> None:
    made = make_plan(FakeClock(), 10.0, 0)
    assert made.failed(A, BrokerUnavailable("a"), 0.0) is not None
    assert made.failed(A, ConnectionLost("a"), 0.0) is None
    assert type(made.outcome()) is OutcomeUnknown


def test_connection_reset_counts_and_next_try_follows_soon() -> None:
    made = make_plan(FakeClock(), 10.0, 1)
    wait = made.failed(A, ConnectionLost("a"), 0.0)
    assert wait is not None
    assert 0.04 <= wait <= 0.06
    assert made.counted == 1
    assert made.failed(A, ConnectionLost("a"), 0.0) is None


@pytest.mark.parametrize("error", [ConnectionLost("a"), Timeout("a")])
@pytest.mark.parametrize("retries", [0, 2])
def test_idempotent_send_repeats_unknown_tries_within_timeout(error: RayMQError, retries: int) -> None:
    clock = FakeClock()
    made = make_plan(clock, 10.0, retries, is_idempotent=True)
    waits = collect_pauses(made, clock, A, error)
    assert 9.5 <= sum(waits) <= 10.0
    assert type(made.outcome()) is OutcomeUnknown


def test_interrupted_write_is_not_repeated() -> None:
    made = make_plan(FakeClock(), 10.0, 0, is_idempotent=True)
    assert made.failed(A, with_code(WriteUnknown("half"), "SYSTEM_ERROR"), 0.0) is None


@pytest.mark.parametrize("timeout", [0.0, -1.0])
def test_send_without_time_left_ends_at_once(timeout: float) -> None:
    made = make_plan(FakeClock(), timeout, 2, is_idempotent=True)
    assert made.failed(A, BrokerUnavailable("a"), 0.0) is None
    assert made.failed(A, Timeout("a"), 0.0) is None


def test_send_without_waiting_counts_every_try() -> None:
    made = make_plan(FakeClock(), 10.0, 1, waits=False)
    assert made.failed(A, BrokerUnavailable("a"), 0.0) == 0.0
    assert made.failed(A, BrokerUnavailable("a"), 0.0) is None
    once = make_plan(FakeClock(), 10.0, 0, waits=False)
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
def test_try_gets_3_seconds_while_another_is_left(timeout: float, retries: int, expected: list[float]) -> None:
    clock = FakeClock()
    made = make_plan(clock, timeout, retries)
    found = []
    for _ in expected:
        found.append(made.try_timeout())
        clock.advance(found[-1])
        made.failed(A, Timeout("a"), found[-1])
    assert found == pytest.approx(expected)


def test_last_try_of_idempotent_send_gets_remaining_time() -> None:
    clock = FakeClock()
    made = make_plan(clock, 60.0, 1, is_idempotent=True)
    assert made.try_timeout() == 3.0
    clock.advance(3.0)
    made.failed(A, Timeout("a"), 3.0)
    assert made.try_timeout() == pytest.approx(57.0)


def test_connection_attempt_gets_3_seconds() -> None:
    assert make_plan(FakeClock(), 60.0, 0).reach_timeout() == 3.0
    assert make_plan(FakeClock(), 4.0, 0).reach_timeout() == 2.0
    assert make_plan(FakeClock(), 4.0, 0, waits=False).reach_timeout() == 4.0


def test_error_of_long_send_lists_first_and_last_tries() -> None:
    clock = FakeClock()
    made = make_plan(clock, 600.0, 0)
    collect_pauses(made, clock, A, BrokerUnavailable("a"))
    assert 32 <= len(made.outcome().attempts) <= 64
    assert len(str(made.outcome()).splitlines()) < 20


def test_refusal_after_unreachable_tries_is_final() -> None:
    made = make_plan(FakeClock(), 10.0, 2)
    made.failed(A, BrokerUnavailable("a"), 0.0)
    refused = with_code(InvalidInput("body", "small", "large"), "INVALID_PARAMETER")
    assert made.failed(A, refused, 0.0) is None
    assert made.is_final_refusal(refused)


@pytest.mark.parametrize(
    ("errors", "outcome"),
    [
        ([Timeout("a"), ConnectionLost("a"), Timeout("a")], OutcomeUnknown),
        (
            [
                Timeout("t", "silent"),
                with_code(StoreFailed("s"), "SERVICE_NOT_AVAILABLE"),
                with_code(PermissionDenied("p"), "NO_PERMISSION"),
            ],
            OutcomeUnknown,
        ),
        (
            [
                with_code(WriteUnknown("half"), "SYSTEM_ERROR"),
                with_code(StoreFailed("s"), "SERVICE_NOT_AVAILABLE"),
                with_code(StoreFailed("s"), "SERVICE_NOT_AVAILABLE"),
            ],
            OutcomeUnknown,
        ),
        ([with_code(StoreFailed("s"), "SERVICE_NOT_AVAILABLE")] * 3, NotStored),
        ([with_code(PermissionDenied("p"), "NO_PERMISSION")] * 3, NotStored),
    ],
)
def test_outcome_of_three_tries(errors: list[RayMQError], outcome: type[RayMQError]) -> None:
    clock = FakeClock()
    tried = make_plan(clock)
    waits = [tried.failed(A, error, 0.1) for error in errors]
    assert [wait is None for wait in waits] == [False, False, True]
    error = tried.outcome()
    assert type(error) is outcome
    assert len(error.attempts) == 3
    assert "try 3" in str(error)
    assert str(error).splitlines()[0].endswith(f": {error.attempts[-1].error}"), "all that a log may show"


def test_final_answer_ends_send_at_once() -> None:
    tried = make_plan(FakeClock())
    refused = with_code(InvalidInput("body", "small", "large"), "INVALID_PARAMETER")
    assert tried.failed(A, refused, 0.0) is None
    assert tried.is_final_refusal(refused)


def test_topic_not_found_is_final_refusal() -> None:
    tried = make_plan(FakeClock())
    missing = with_code(TopicNotFound("t"), "TOPIC_NOT_EXIST")
    for _ in range(3):
        tried.failed(None, missing, 0.0)
    assert tried.is_final_refusal(missing)


def test_permission_denied_is_final_refusal() -> None:
    tried = make_plan(FakeClock())
    forbidden = with_code(PermissionDenied("t"), "NO_PERMISSION")
    tried.failed(A, forbidden, 0.0)
    tried.failed(None, forbidden, 0.0)
    assert tried.is_final_refusal(forbidden)
    tried.failed(B, BrokerUnavailable("b"), 0.0)
    assert not tried.is_final_refusal(forbidden)


def test_first_sequence_gap_of_queue_costs_no_try() -> None:
    queues = [MessageQueue("t", "a", number) for number in range(2)]
    tried = make_plan(FakeClock(), timeout=3.0, retries=1)
    gap = with_code(SequenceGap("message 0 comes next"), "SYSTEM_ERROR")
    assert [tried.failed(queue, gap, 0.0) for queue in queues] == [0.0, 0.0]
    assert tried.attempts == []
    assert [tried.failed(queue, gap, 0.0) for queue in queues] == [0.0, None]
    assert type(tried.outcome()) is NotStored


def test_sequence_gap_after_unknown_try_counts_as_try() -> None:
    """Keep the sequence number of a batch that may be stored."""
    queue = MessageQueue("t", "a", 0)
    tried = make_plan(FakeClock(), timeout=3.0, retries=1)
    assert tried.failed(queue, Timeout("a"), 0.0) == 0.0
    assert tried.failed(queue, with_code(SequenceGap("message 0 comes next"), "SYSTEM_ERROR"), 0.0) is None
    assert type(tried.outcome()) is OutcomeUnknown


def test_flow_control_waits_grow_within_timeout() -> None:
    clock = FakeClock()
    tried = make_plan(clock, timeout=60.0, retries=1)
    waits = collect_pauses(tried, clock, A, with_code(ServerBusy("busy"), "SYSTEM_BUSY"))
    assert 20.0 < sum(waits) < 60.0
    assert len(waits) > 4, "it does not count against the retries"
    for number, wait in enumerate(waits):
        assert 0.8 * 1.6**number <= wait <= 1.2 * 1.6**number


def test_flow_control_without_retries_ends_send() -> None:
    tried = make_plan(FakeClock(), retries=0)
    assert tried.failed(A, with_code(ServerBusy("busy"), "SYSTEM_BUSY"), 0.0) is None
    assert [attempt.code for attempt in tried.outcome().attempts] == ["SYSTEM_BUSY"]


def test_backoff_is_bounded_and_resets() -> None:
    backoff = Backoff(rng=random.Random(3))
    delays = [backoff.next_delay() for _ in range(30)]
    assert 0.8 <= delays[0] <= 1.2
    assert max(delays) <= 120.0
    assert delays[-1] > 90.0
    backoff.reset()
    assert backoff.next_delay() <= 1.2


def test_insufficient_status_counts_as_try() -> None:
    tried = make_plan(FakeClock(), retries=1)
    error = tried.record_bad_status(A, SendStatus.FLUSH_DISK_TIMEOUT, 0.1)
    assert error is not None
    assert tried.is_in_doubt
    assert [attempt.code for attempt in tried.attempts] == ["FLUSH_DISK_TIMEOUT"]
    assert tried.record_bad_status(B, SendStatus.FLUSH_DISK_TIMEOUT, 0.1) is None
