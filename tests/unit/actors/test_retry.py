"""Test the retry ladder and the scheduler's poll intervals with tables."""

from __future__ import annotations

import pytest

from raymq.actors.broker.core.redelivery.retry import MoveToDlq, RetryLater, decide_resent, decide_retry
from raymq.actors.poll_schedule import FAILURE_SECONDS, IDLE_SECONDS, PollSchedule
from raymq.actors.protocol import DueReport
from tests.unit.actors.clock import FakeClock

LEVELS = 18


@pytest.mark.parametrize(
    ("reconsume_times", "asked_level", "maximum", "decision"),
    [
        (0, 0, 16, RetryLater(3)),
        (1, 0, 16, RetryLater(4)),
        (15, 0, 16, RetryLater(18)),
        (20, 0, 30, RetryLater(18)),
        (0, 1, 16, RetryLater(1)),
        (9, 5, 16, RetryLater(5)),
        (0, 99, 16, RetryLater(18)),
    ],
)
def test_failed_message_is_retried_at_delay_level(
    reconsume_times: int, asked_level: int, maximum: int, decision: RetryLater
) -> None:
    assert decide_retry(reconsume_times, asked_level, maximum, LEVELS) == decision


@pytest.mark.parametrize(
    ("reconsume_times", "asked_level", "maximum", "reason"),
    [
        (16, 0, 16, "failed 17 times"),
        (0, 0, 0, "failed 1 times"),
        (2, 7, 2, "failed 3 times"),
        (0, -1, 16, "the listener asked for it"),
    ],
)
def test_failed_message_becomes_dead_letter(reconsume_times: int, asked_level: int, maximum: int, reason: str) -> None:
    assert decide_retry(reconsume_times, asked_level, maximum, LEVELS) == MoveToDlq(reason)


@pytest.mark.parametrize(
    ("reconsume_times", "maximum", "ordered", "decision"),
    [
        (0, 16, False, None),
        (16, 16, False, None),
        (17, 16, False, MoveToDlq("failed 17 times")),
        (1, 0, False, MoveToDlq("failed 1 times")),
        (0, 16, True, MoveToDlq("an ordered consumer gave up on it")),
    ],
)
def test_resent_message_becomes_dead_letter_after_maximum(
    reconsume_times: int, maximum: int, ordered: bool, decision: MoveToDlq | None
) -> None:
    assert decide_resent(reconsume_times, maximum, ordered=ordered) == decision


@pytest.mark.parametrize("maximum", [0, 1, 5, 16])
def test_failing_message_is_delivered_maximum_plus_one_times(maximum: int) -> None:
    deliveries = 0
    reconsume_times = 0
    while True:
        deliveries += 1
        if isinstance(decide_retry(reconsume_times, 0, maximum, LEVELS), MoveToDlq):
            break
        reconsume_times += 1
    assert deliveries == maximum + 1


@pytest.mark.parametrize(
    ("next_due_in", "expected"),
    [
        (None, IDLE_SECONDS),
        (0.05, IDLE_SECONDS),
        (-0.001, IDLE_SECONDS),
        (3_600.0, IDLE_SECONDS),
        (-5.0, 0.0),
    ],
)
def test_only_late_broker_is_polled_at_once(next_due_in: float | None, expected: float) -> None:
    clock = FakeClock()
    pace = PollSchedule(clock)
    assert pace.wait() < 0
    wait_ms = None if next_due_in is None else int(next_due_in * 1000)
    pace.answered(DueReport(0, 1, 0, wait_ms))  # the broker's clock does not matter
    assert pace.wait() == pytest.approx(expected, abs=0.002)


def test_failed_poll_delays_next_poll() -> None:
    clock = FakeClock()
    pace = PollSchedule(clock)
    pace.failed()
    assert pace.wait() == pytest.approx(FAILURE_SECONDS)
