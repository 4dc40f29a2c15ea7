"""A listener's failure is logged with its reason, which the next try and the dead letter name."""

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


class Account:
    """A listener that fails `times` times on each message, and keeps what it got."""

    def __init__(self, times: int, fail: Callable[[], Any]) -> None:
        self._times, self._fail = times, fail
        self.got: list[ReceivedMessage] = []

    def __call__(self, messages: list[ReceivedMessage]) -> Any:
        self.got += messages
        return ConsumeResult.SUCCESS if len(self.got) > self._times else self._fail()

    @property
    def failures(self) -> list[str | None]:
        return [message.failure for message in self.got]


def no_such_account() -> Any:
    raise ValueError("no such account\nand more lines")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "raymq.consumer" and record.levelno == logging.WARNING
    ]


@pytest.mark.parametrize(("threads", "batch_size"), [(1, 1), (4, 8)])
def test_a_retry_names_the_failure_before_it(
    mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture, threads: int, batch_size: int
) -> None:
    listener = Account(1, no_such_account)
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
def test_what_is_no_result_is_a_warning_and_the_reason(
    mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture, answer: object
) -> None:
    listener = Account(9, lambda: answer)
    Producer(mq, "p").send(Message("t", b"x"))
    with PushConsumer(mq, "g-none", {"t": "*"}, listener, max_reconsume_times=1):
        poll_until(lambda: admin.dlq_list("g-none"), 20, "dead letter")
    shown = "a str" if answer == "done" else answer
    reason = f"listener returned {shown}, which counts as failed; return ConsumeResult.SUCCESS"
    assert [letter.reason for letter in admin.dlq_list("g-none")] == [reason]
    assert listener.failures == [None, reason]
    assert reason in warnings(caplog)[0]


def test_a_dead_letter_names_the_last_failure(mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture) -> None:
    Producer(mq, "p").send(Message("t", b"x"))
    with PushConsumer(mq, "g-dead", {"t": "*"}, Account(9, no_such_account), max_reconsume_times=0):
        poll_until(lambda: admin.dlq_list("g-dead"), 20, "dead letter")
    [letter] = admin.dlq_list("g-dead")
    assert (letter.reason, letter.failure, letter.reconsume_times) == (BAD, None, 1)
    said = "\n".join(warnings(caplog))
    assert "it goes to the dead letters" in said
    assert f"is a dead letter now: {BAD}" in said


def test_only_the_type_is_kept_where_texts_are_not_wanted(mq: Connection, admin: Admin) -> None:
    Producer(mq, "p").send(Message("t", b"x"))
    listener = Account(9, no_such_account)
    with PushConsumer(mq, "g-type", {"t": "*"}, listener, max_reconsume_times=1, failure_text=False):
        poll_until(lambda: admin.dlq_list("g-type"), 20, "dead letter")
    [letter] = admin.dlq_list("g-type")
    assert (letter.reason, listener.failures) == ("ValueError", [None, "ValueError"])


def test_an_ordered_repeat_names_the_failure_before_it(
    mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Account(2, no_such_account)
    Producer(mq, "p").send(Message("t", b"x"))
    with PushConsumer(mq, "g-ordered", {"t": "*"}, listener, ordered=True, ordered_retry_interval=0.05):
        poll_until(lambda: len(listener.got) == 3, 20, "third try")
    assert listener.failures == [None, BAD, BAD]
    assert "tried again in 0.05 s" in warnings(caplog)[0]


def test_an_ordered_dead_letter_names_its_failure(mq: Connection, admin: Admin) -> None:
    Producer(mq, "p").send(Message("t", b"x"))
    with PushConsumer(
        mq,
        "g-gave-up",
        {"t": "*"},
        Account(9, no_such_account),
        ordered=True,
        ordered_retry_interval=0.05,
        max_reconsume_times=1,
    ):
        poll_until(lambda: admin.dlq_list("g-gave-up"), 20, "dead letter")
    assert [letter.reason for letter in admin.dlq_list("g-gave-up")] == [BAD]


def test_a_coroutine_listener_fails_as_any_other(
    mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Account(1, no_such_account)

    async def awaited(messages: list[ReceivedMessage]) -> Any:
        await asyncio.sleep(0)
        return listener(messages)

    Producer(mq, "p").send(Message("t", b"x"))
    with PushConsumer(mq, "g-async", {"t": "*"}, awaited):
        poll_until(lambda: len(listener.got) == 2, 20, "second try")
    assert listener.failures == [None, BAD]
    assert BAD in warnings(caplog)[0]


def test_a_broadcast_failure_is_a_warning(mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture) -> None:
    listener = Account(1, no_such_account)
    Producer(mq, "p").send(Message("t", b"x"))
    with PushConsumer(mq, "g-all", {"t": "*"}, listener, model=MessageModel.BROADCASTING):
        poll_until(lambda: warnings(caplog), 20, "warning")
    assert BAD in warnings(caplog)[0]
    assert "it does not come again" in warnings(caplog)[0]


def test_a_time_out_says_after_how_long(mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_storm_of_failures_is_a_few_lines(mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture) -> None:
    listener = Account(10_000, no_such_account)
    producer = Producer(mq, "p")
    for number in range(100):
        producer.send(Message("t", b"%d" % number))
    with PushConsumer(mq, "g-storm", {"t": "*"}, listener, max_reconsume_times=0):
        poll_until(lambda: len(admin.dlq_list("g-storm")) == 100, 30, "dead letters")
    said = warnings(caplog)
    assert len(said) < 20
    assert sum(record.exc_info is not None for record in caplog.records) == 1


def test_the_dead_letter_of_a_simple_consumer_has_the_brokers_reason(
    mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody else knows of it: its broker logs it."""
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
