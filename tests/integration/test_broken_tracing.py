"""Test that spans which cannot be begun, recorded or ended harm neither sends nor listener calls."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from raymq.client import Admin, ConsumeResult, Message, Producer, PushConsumer, ReceivedMessage, SimpleConsumer
from raymq.client.connection import Connection
from raymq.client.tracing import message_tracer
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


class BrokenProcessor(SpanProcessor):
    """A span processor that raises an error when a span begins or ends."""

    def __init__(self, broken: str) -> None:
        self.broken = broken

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self.broken == "start":
            raise RuntimeError("processor on_start")

    def on_end(self, span: Any) -> None:
        if self.broken == "end":
            raise RuntimeError("processor on_end")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.fixture(params=["start", "end", "neither"])
def traced(
    request: pytest.FixtureRequest, services: Services, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Connection]:
    assert admin is not None  # it creates the topic "t"
    monkeypatch.setattr(message_tracer._unharmed, "_warned", False)
    provider = TracerProvider()
    provider.add_span_processor(BrokenProcessor(request.param))
    with Connection([services.name_server.address], tracing=True) as mq:
        monkeypatch.setattr(mq.tracer, "_tracer", provider.get_tracer("test"))
        yield mq


def ends(admin: Admin) -> int:
    return sum(each.max_offset for each in admin.topic_stats("t").values())


def test_stored_sends_succeed_and_one_warning_says_why(
    traced: Connection, admin: Admin, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    with caplog.at_level(logging.WARNING, "raymq"), Producer(traced, "p") as producer:
        producer.send(Message("t", b"1"))
        producer.send_async(Message("t", b"2")).result(30)
        producer.send_batch([Message("t", b"3"), Message("t", b"4")])
        with pytest.raises(Unprintable), traced.tracer.sending([Message("t", b"5")], "p"):  # type: ignore[union-attr]
            raise Unprintable
    assert ends(admin) == 4
    assert [record.levelname for record in caplog.records if "of a span" in record.message] == ["WARNING"]


def test_each_message_is_handled_once(traced: Connection, admin: Admin) -> None:
    with Producer(traced, "p") as producer:
        for _ in range(3):
            producer.send(Message("t", b"x"))
    calls: list[int] = []

    def fails_once(messages: list[ReceivedMessage]) -> ConsumeResult:
        calls.append(messages[0].reconsume_times)
        if len(calls) == 1:
            raise Unprintable
        return ConsumeResult.SUCCESS

    with PushConsumer(traced, "g", {"t": "*"}, fails_once, max_reconsume_times=0):
        poll_until(lambda: len(calls) >= 3 and not any(each.lag for each in admin.group_progress("g").values()), 30)
    assert calls == [0, 0, 0], "the failed one is a dead letter"
    with SimpleConsumer(traced, "s", {"t": "*"}) as consumer:
        received: list[ReceivedMessage] = []
        poll_until(lambda: received.extend(consumer.receive(10)) or len(received) == 3, 30)
