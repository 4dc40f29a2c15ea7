"""Test how a listener's failure is logged and named by the retry and the dead letter."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from raymq.client import (
    Admin,
    Connection,
    ConsumeResult,
    Message,
    MessageModel,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
)
from tests.polling import poll_until

pytestmark = pytest.mark.integration

BAD = "ValueError: no such account"


class FailingListener:
    """Fail `times` times, then succeed; record all messages."""

    def __init__(self, times: int, fail: Callable[[], Any]) -> None:
        self._times, self._fail = times, fail
        self.got: list[ReceivedMessage] = []

    def __call__(self, messages: list[ReceivedMessage]) -> Any:
        self.got += messages
        return ConsumeResult.SUCCESS if len(self.got) > self._times else self._fail()

    @property
    def failures(self) -> list[str | None]:
        return [message.failure for message in self.got]


def raise_no_such_account() -> Any:
    raise ValueError("no such account\nand more lines")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "raymq.consumer" and record.levelno == logging.WARNING
    ]


@pytest.mark.parametrize(("threads", "batch_size"), [(1, 1), (4, 8)])
def test_retry_carries_previous_failure(
    mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture, threads: int, batch_size: int
) -> None:
    listener = FailingListener(1, raise_no_such_account)
    sent = Producer(mq, "p").send(Message("t", b"x"))
    with PushConsumer(mq, "g-retry", {"t": "*"}, listener, threads=threads, batch_size=batch_size):
        poll_until(lambda: len(listener.got) == 2, 20, "second try")
    assert listener.failures == [None, BAD]
    assert "RAYMQ_FAILURE" not in listener.got[1].properties
    [said] = warnings(caplog)
    for part in ("g-retry", "topic t", f"offset {sent.queue_offset}", sent.message_id, "try 1", BAD, "again in 1 s"):
        assert part in said
    assert "raise ValueError" in caplog.text


@pytest.mark.parametrize("answer", [None, True, "done"])
def test_invalid_listener_result_is_logged_and_recorded(
    mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture, answer: object
) -> None:
    listener = FailingListener(9, lambda: answer)
    Producer(mq, "p").send(Message("t", b"x"))
    with PushConsumer(mq, "g-none", {"t": "*"}, listener, max_reconsume_times=1):
        poll_until(lambda: admin.dlq_list("g-none"), 20, "dead letter")
    shown = "a str" if answer == "done" else answer
    reason = f"listener returned {shown}, which counts as failed; return ConsumeResult.SUCCESS"
    assert [letter.reason for letter in admin.dlq_list("g-none")] == [reason]
    assert listener.failures == [None, reason]
    assert reason in warnings(caplog)[0]


def test_dead_letter_carries_last_failure(mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture) -> None:
    Producer(mq, "p").send(Message("t", b"x"))
    with PushConsumer(mq, "g-dead", {"t": "*"}, FailingListener(9, raise_no_such_account), max_reconsume_times=0):
        poll_until(lambda: admin.dlq_list("g-dead"), 20, "dead letter")
    [letter] = admin.dlq_list("g-dead")
    assert (letter.reason, letter.failure, letter.reconsume_times) == (BAD, None, 1)
    said = "\n".join(warnings(caplog))
    assert "it goes to the dead letters" in said
    assert f"is a dead letter now: {BAD}" in said


def test_failure_text_false_records_error_type_only(mq: Connection, admin: Admin) -> None:
    Producer(mq, "p").send(Message("t", b"x"))
    listener = FailingListener(9, raise_no_such_account)
    with PushConsumer(mq, "g-type", {"t": "*"}, listener, max_reconsume_times=1, failure_text=False):
        poll_until(lambda: admin.dlq_list("g-type"), 20, "dead letter")
    [letter] = admin.dlq_list("g-type")
    assert (letter.reason, listener.failures) == ("ValueError", [None, "ValueError"])


def test_ordered_retry_carries_previous_failure(mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture) -> None:
    listener = FailingListener(2, raise_no_such_account)
    Producer(mq, "p").send(Message("t", b"x"))
    with PushConsumer(mq, "g-ordered", {"t": "*"}, listener, ordered=True, ordered_retry_interval=0.05):
        poll_until(lambda: len(listener.got) == 3, 20, "third try")
    assert listener.failures == [None, BAD, BAD]
    assert "tried again in 0.05 s" in warnings(caplog)[0]


def test_ordered_dead_letter_carries_failure(mq: Connection, admin: Admin) -> None:
    Producer(mq, "p").send(Message("t", b"x"))
    with PushConsumer(
        mq,
        "g-gave-up",
        {"t": "*"},
        FailingListener(9, raise_no_such_account),
        ordered=True,
        ordered_retry_interval=0.05,
        max_reconsume_times=1,
    ):
        poll_until(lambda: admin.dlq_list("g-gave-up"), 20, "dead letter")
    assert [letter.reason for letter in admin.dlq_list("g-gave-up")] == [BAD]


def test_coroutine_listener_failure_is_logged_and_recorded(
    mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    listener = FailingListener(1, raise_no_such_account)

    async def awaited(messages: list[ReceivedMessage]) -> Any:
        await asyncio.sleep(0)
        return listener(messages)

    Producer(mq, "p").send(Message("t", b"x"))
    with PushConsumer(mq, "g-async", {"t": "*"}, awaited):
        poll_until(lambda: len(listener.got) == 2, 20, "second try")
    assert listener.failures == [None, BAD]
    assert BAD in warnings(caplog)[0]


def test_broadcast_failure_is_logged_as_warning(mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture) -> None:
    listener = FailingListener(1, raise_no_such_account)
    Producer(mq, "p").send(Message("t", b"x"))
    with PushConsumer(mq, "g-all", {"t": "*"}, listener, model=MessageModel.BROADCASTING):
        poll_until(lambda: warnings(caplog), 20, "warning")
    assert BAD in warnings(caplog)[0]
    assert "it does not come again" in warnings(caplog)[0]


def test_consume_timeout_failure_names_duration(mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture) -> None:
    go_on = threading.Event()
    Producer(mq, "p").send(Message("t", b"x"))

    def listener(_: list[ReceivedMessage]) -> ConsumeResult:
        go_on.wait(20)
        return ConsumeResult.SUCCESS

    with PushConsumer(mq, "g-slow", {"t": "*"}, listener, consume_timeout=0.2, max_reconsume_times=0):
        try:
            poll_until(lambda: admin.dlq_list("g-slow"), 20, "dead letter")
        finally:
            go_on.set()
    assert [letter.reason for letter in admin.dlq_list("g-slow")] == ["no answer within 0.2 s"]
    assert "no answer within 0.2 s" in warnings(caplog)[0]


def test_many_failures_log_few_lines(mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture) -> None:
    listener = FailingListener(10_000, raise_no_such_account)
    producer = Producer(mq, "p")
    for number in range(100):
        producer.send(Message("t", b"%d" % number))
    with PushConsumer(mq, "g-storm", {"t": "*"}, listener, max_reconsume_times=0):
        poll_until(lambda: len(admin.dlq_list("g-storm")) == 100, 30, "dead letters")
    said = warnings(caplog)
    assert len(said) < 20
    assert sum(record.exc_info is not None for record in caplog.records) == 1


def test_simple_consumer_dead_letter_has_broker_reason(
    mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    """Check the broker's log too, as no client knows of this failure."""
    Producer(mq, "p").send(Message("t", b"x"))
    with SimpleConsumer(mq, "g-pop", {"t": "*"}, max_reconsume_times=0) as consumer:
        [message] = consumer.receive(invisible_duration=0.2, await_duration=10)
        assert message.failure is None
        poll_until(lambda: admin.dlq_list("g-pop"), 20, "dead letter")
    assert admin.dlq_list("g-pop")[0].reason == "not acknowledged in time, 1 times"
    logged = [record.getMessage() for record in caplog.records if "is a dead letter" in record.getMessage()]
    assert len(logged) == 1
    assert logged[0].startswith("group g-pop: the message of topic t queue ")
    assert logged[0].endswith("is a dead letter: not acknowledged in time, 1 times")
