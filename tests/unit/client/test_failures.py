"""Test the failure reasons of listener calls, and which failures are logged."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from raymq.client import ConsumeResult, Retry
from raymq.client.push.failures import CallFailure, FailureLog, LogLine, LogThrottle
from raymq.client.push.listener import ListenerRunner, read_answer
from raymq.storage.errors import number_text
from raymq.storage.records.failure_reason import MAX_REASON_BYTES, failure_reason
from tests.received_messages import message

LATER = ConsumeResult.RECONSUME_LATER


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def reason_of(error: BaseException, *, with_text: bool = True) -> str:
    def listener(_: list[Any]) -> ConsumeResult:
        raise error

    [failure] = ListenerRunner(listener, failure_text=with_text).call([message(0)])
    assert failure is not None
    return failure.reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no such account"), "ValueError: no such account"),
        (ValueError("\n first\nsecond"), "ValueError: first"),
        (ValueError(), "ValueError"),
        (KeyError("a"), "KeyError: 'a'"),
        (SystemExit(3), "SystemExit: 3"),
        (Unprintable(), "Unprintable"),
        (ValueError("a\x01b\x02c\x00\x7f\x85"), "ValueError: a b c"),
        (ValueError("half \ud800 pair"), "ValueError: half \ufffd pair"),
    ],
)
def test_listener_exception_becomes_the_failure_reason(error: BaseException, reason: str) -> None:
    assert reason_of(error) == reason


def test_reason_without_text_is_the_exception_type() -> None:
    assert reason_of(ValueError("password=secret"), with_text=False) == "ValueError"


@pytest.mark.parametrize("text", ["x" * 10_000, "\u20ac" * 10_000, "a" + "\U0001f600" * 10_000])
def test_long_reason_is_cut_between_characters(text: str) -> None:
    reason = failure_reason(text)
    assert MAX_REASON_BYTES - 4 < len(reason.encode()) <= MAX_REASON_BYTES
    assert text.startswith(reason)


@pytest.mark.parametrize(
    ("answer", "reasons"),
    [
        (None, ["listener returned None, which counts as failed; return ConsumeResult.SUCCESS"]),
        (True, ["listener returned True, which counts as failed; return ConsumeResult.SUCCESS"]),
        ("done", ["listener returned a str, which counts as failed; return ConsumeResult.SUCCESS"]),
        (LATER, ["listener returned RECONSUME_LATER"]),
        (Retry(3), ["listener returned Retry(delay_level=3)"]),
        (Retry(-1), ["the listener asked for it"]),
        (ConsumeResult.SUCCESS, [None]),
        ([ConsumeResult.SUCCESS, LATER], [None, "listener returned RECONSUME_LATER"]),
    ],
)
def test_failure_reason_names_the_listener_answer(answer: Any, reasons: list[str | None]) -> None:
    failures = read_answer(answer, len(reasons))
    assert [None if each is None else each.reason for each in failures] == reasons


def test_reason_of_a_wrong_result_count_has_both_counts() -> None:
    for failure in read_answer([LATER], 2):
        assert failure is not None
        assert "1 results for 2 messages" in failure.reason


@pytest.mark.parametrize(
    ("seconds", "shown"), [(900.0, "900"), (0.5, "0.5"), (31_536_000.0, "31536000"), (3e-4, "0.0003")]
)
def test_timeout_reason_has_the_seconds(seconds: float, shown: str) -> None:
    assert CallFailure.timed_out(seconds).reason == f"no answer within {shown} s"
    assert number_text(-seconds) == f"-{shown}"


# -- log lines -----------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


FULL = LogLine(in_full=True, others=0)


def test_first_failure_is_logged_in_full_then_one_per_second() -> None:
    clock = Clock()
    throttle = LogThrottle(clock)
    assert throttle.admit("a") == FULL
    for step in range(9):
        clock.now = 0.1 * (step + 1)
        assert throttle.admit("a") is None
    assert throttle.admit("b") == FULL, "another kind has lines of its own"
    clock.now = 1.0
    assert throttle.admit("a") == LogLine(in_full=False, others=9)
    clock.now = 3.0
    assert throttle.admit("a") == LogLine(in_full=False, others=0)


def test_counted_failures_are_logged_without_a_further_failure() -> None:
    clock = Clock()
    throttle = LogThrottle(clock)
    for _ in range(5):
        throttle.admit("a", lambda: "the last")
    assert throttle.overdue() == []
    clock.now = 1.0
    assert throttle.overdue() == [("a", 4, "the last")]
    assert throttle.overdue() == []
    assert throttle.admit("a") is None, "the line of the count was this second's"
    assert throttle.overdue(all_of_them=True) == [("a", 1, "")]


def test_failure_is_logged_in_full_after_a_quiet_minute() -> None:
    clock = Clock()
    throttle = LogThrottle(clock)
    throttle.admit("a")
    clock.now = 59.0
    assert throttle.admit("a") == LogLine(in_full=False, others=0)
    clock.now = 119.0
    assert throttle.admit("a") == FULL


def test_number_of_remembered_failure_kinds_is_bounded() -> None:
    throttle = LogThrottle(Clock())
    for number in range(5_000):
        throttle.admit(str(number))
    assert len(throttle._kinds) <= 1_000


def log_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert {record.name for record in caplog.records} <= {"raymq.consumer"}
    assert {record.levelno for record in caplog.records} <= {logging.WARNING}
    return [record.getMessage() for record in caplog.records]


def test_failure_log_has_message_and_next_step(caplog: pytest.LogCaptureFixture) -> None:
    def listener(_: list[Any]) -> ConsumeResult:
        raise ValueError("no such account")

    [failure] = ListenerRunner(listener).call([message(7)])
    assert failure is not None
    log = FailureLog("billing", Clock())
    line = log.admit(failure, message(7))
    assert line is not None
    log.write(line, failure, [message(7), message(8)], "it comes again in 10 s")
    [text] = log_lines(caplog)
    for part in (
        "billing",
        "topic t",
        "b queue 0 offset 7",
        "try 1",
        "and 1 more",
        "ValueError: no such",
        "again in 10 s",
    ):
        assert part in text
    assert caplog.records[0].exc_info is not None
    assert "raise ValueError" in caplog.text
    assert "client/push/listener.py" not in caplog.text, "the traceback begins with the listener"


def test_requested_retry_is_logged_without_traceback(caplog: pytest.LogCaptureFixture) -> None:
    log = FailureLog("g", Clock())
    [failure] = read_answer(LATER, 1)
    assert failure is not None
    line = log.admit(failure, message(0))
    assert line is not None
    log.write(line, failure, [message(0)], "it comes again")
    assert caplog.records[0].exc_info is None
    assert "RECONSUME_LATER" in log_lines(caplog)[0]


def test_dead_letters_share_one_log_line_per_second(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = FailureLog("g", clock)
    for offset in range(10):
        log.dead_letter(message(offset), "ValueError: bad")
    clock.now = 1.0
    log.flush()
    first, rest = log_lines(caplog)
    assert "offset 0" in first
    assert "ValueError: bad" in first
    assert "9 more dead letters" in rest
    assert "offset 9" in rest


def test_damaged_dead_letter_is_logged_with_its_offset(caplog: pytest.LogCaptureFixture) -> None:
    class Damaged:
        queue = message(0).queue
        queue_offset = 3

        def __getattr__(self, name: str) -> Any:
            raise ValueError("it cannot be decoded")

    FailureLog("g", Clock()).dead_letter(Damaged(), "why")  # type: ignore[arg-type]
    assert "offset 3" in log_lines(caplog)[0]


def test_faulty_log_filter_raises_no_error() -> None:
    def faulty(_: logging.LogRecord) -> bool:
        raise RuntimeError("the program's own fault")

    logger = logging.getLogger("raymq.consumer")
    logger.addFilter(faulty)
    try:
        FailureLog("g", Clock()).dead_letter(message(0), "why")
    finally:
        logger.removeFilter(faulty)
