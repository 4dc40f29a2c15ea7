"""Test the spans and trace contexts of real messages with OpenTelemetry's SDK."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from raymq.client import (
    Admin,
    ConsumeResult,
    Message,
    NotStored,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Retry,
    SimpleConsumer,
)
from raymq.client.connection import Connection
from raymq.storage.records.record import encode_properties
from tests.integration.conftest import Services
from tests.polling import poll_until
from tests.recorded_spans import Spans, attributes, links, parent_id, recorded_spans, span_id, trace_id, traceparent

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


@pytest.fixture
def spans() -> Iterator[Spans]:
    with recorded_spans() as spans:
        yield spans


@pytest.fixture
def traced(services: Services, admin: Admin) -> Iterator[Connection]:
    assert admin is not None  # it creates the topic "t"
    with Connection([services.name_server.address], tracing=True) as mq:
        yield mq


def receive_all(mq: Connection, group: str, count: int) -> list[ReceivedMessage]:
    with SimpleConsumer(mq, group, {"t": "*"}) as consumer:
        found: list[ReceivedMessage] = []
        deadline = time.monotonic() + 30
        while len(found) < count and time.monotonic() < deadline:
            received = consumer.receive(32, await_duration=1.0)
            found += received
            if received:
                consumer.ack(received)
        return found


@pytest.mark.parametrize("mode", ["queue", "pop"])
def test_one_trace_from_send_to_redrive(mode: str, traced: Connection, spans: Spans) -> None:
    tries: list[int] = []
    is_repaired = threading.Event()

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult | Retry:
        tries.append(messages[0].reconsume_times)
        if is_repaired.is_set():
            return ConsumeResult.SUCCESS
        if messages[0].reconsume_times:
            return Retry(-1)
        raise ValueError("no such account")

    with (
        Producer(traced, "p") as producer,
        Admin(traced) as admin,
        PushConsumer(traced, "g", {"t": "*"}, listener, mode=mode),
    ):
        producer.send(Message("t", b"body", tags="paid", keys="k1", properties={"a": "b"}))
        spans.wait_for("dead_letter t")
        is_repaired.set()
        poll_until(lambda: len(admin.dlq_list("g")) == 1, 30)
        assert len(admin.dlq_redrive("g").redriven) == 1
        spans.wait_for("process t", 3)
    assert tries == [0, 1, 0]
    names = [span.name for span in spans.all()]
    assert names == ["send t", "process t", "retry t", "process t", "dead_letter t", "redrive t", "process t"]
    assert len({trace_id(span) for span in spans.all()}) == 1
    (send,) = spans.named("send t")
    assert (parent_id(send), send.kind) == (None, SpanKind.PRODUCER)
    assert set(map(parent_id, spans.all())) == {None, span_id(send)}
    sent = attributes(send)
    assert sent["messaging.system"] == "rocketmq"
    assert sent["messaging.operation.name"] == sent["messaging.operation.type"] == "send"
    assert sent["messaging.destination.name"] == "t"
    assert sent["messaging.message.body.size"] == 4
    assert sent["messaging.rocketmq.message.tag"] == "paid"
    assert sent["messaging.rocketmq.message.keys"] == ("k1",)
    first, second, third = spans.named("process t")
    assert [attributes(span)["raymq.message.try"] for span in (first, second, third)] == [1, 2, 1]
    assert (first.kind, links(first)) == (SpanKind.CONSUMER, [span_id(send)])
    assert attributes(first)["messaging.consumer.group.name"] == "g"
    assert attributes(first)["messaging.message.id"] == sent["messaging.message.id"]
    assert attributes(first)["messaging.rocketmq.consumption_model"] == "clustering"
    assert attributes(first)["error.type"] == "ValueError"
    assert [span.status.status_code for span in (first, second, third)] == [
        StatusCode.ERROR,
        StatusCode.ERROR,
        StatusCode.UNSET,
    ]
    assert [event.name for event in first.events] == ["exception"]
    assert attributes(spans.named("retry t")[0])["raymq.failure"] == "ValueError: no such account"
    assert attributes(spans.named("dead_letter t")[0])["messaging.operation.type"] == "settle"


@pytest.mark.parametrize("mode", ["queue", "pop"])
def test_context_of_grpc_clients_is_kept_in_copies(mode: str, mq: Connection, traced: Connection, spans: Spans) -> None:
    context = f"00-{1:032x}-{2:016x}-01"

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult | Retry:
        return Retry(-1) if messages[0].reconsume_times else ConsumeResult.RECONSUME_LATER

    message = Message("t", b"body")
    message.__setstate__({"own_properties": encode_properties({"TRACE_CONTEXT": context})})
    with Producer(mq, "p") as producer, PushConsumer(traced, "g", {"t": "*"}, listener, mode=mode):
        producer.send(message)
        spans.wait_for("dead_letter t")
    (dead,) = Admin(traced).dlq_list("g")
    assert dead.system_properties["TRACE_CONTEXT"] == context
    assert {(trace_id(span), parent_id(span)) for span in spans.all()} == {(1, 2)}
    assert len(spans.all()) == 4


def test_failure_text_stays_out_of_spans(traced: Connection, spans: Spans) -> None:
    def listener(_: list[ReceivedMessage]) -> ConsumeResult:
        raise ValueError("secret")

    with Producer(traced, "p") as producer, PushConsumer(traced, "g", {"t": "*"}, listener, failure_text=False):
        producer.send(Message("t", b"body"))
        spans.wait_for("retry t")
    assert "secret" not in "".join(span.to_json() for span in spans.all())


def test_listener_spans_and_sends_are_children(traced: Connection, spans: Spans) -> None:
    """A listener is called within its span, also as a coroutine on the program's event loop."""

    async def run() -> None:
        done = asyncio.Event()

        async def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
            if messages[0].tags == "first":
                await producer.asend(Message("t", b"next"))
            else:
                done.set()
            return ConsumeResult.SUCCESS

        async with Producer(traced, "p") as producer, PushConsumer(traced, "g", {"t": "*"}, listener):
            await producer.asend(Message("t", b"body", tags="first"))
            await asyncio.wait_for(done.wait(), 30)

    asyncio.run(run())
    first, second = spans.named("send t")
    processed = next(span for span in spans.named("process t") if attributes(span).get("raymq.message.try"))
    assert len({trace_id(span) for span in spans.all()}) == 1
    assert parent_id(second) == span_id(processed)
    assert parent_id(processed) == span_id(first)


def test_batch_has_links_to_its_senders(traced: Connection, spans: Spans) -> None:
    seen: list[int] = []

    def listener(messages: list[ReceivedMessage]) -> list[ConsumeResult]:
        seen.append(len(messages))
        return [ConsumeResult.SUCCESS] * len(messages)

    queue = Admin(traced)
    stats = next(iter(queue.topic_stats("t")))
    with Producer(traced, "p") as producer:
        for number in range(3):
            producer.send(Message("t", b"%d" % number), queue=stats)
        with PushConsumer(traced, "g", {"t": "*"}, listener, batch_size=3):
            poll_until(lambda: sum(seen) == 3, 30)
    sends = spans.named("send t")
    linked = [link for span in spans.named("process t") for link in links(span)]
    assert sorted(linked) == sorted(map(span_id, sends))
    several = [span for span in spans.named("process t") if len(span.links) > 1]
    for span in several:
        assert span.parent is None
        assert attributes(span)["messaging.batch.message_count"] == len(span.links)


def test_simple_consumer_receives_and_processes_in_the_trace(traced: Connection, spans: Spans) -> None:
    tracer = trace.get_tracer("test")
    with Producer(traced, "p") as producer, SimpleConsumer(traced, "g", {"t": "*"}) as consumer:
        producer.send(Message("t", b"body"))
        (message,) = consumer.receive()
        with consumer.processing(message), tracer.start_as_current_span("work"):
            pass
        assert consumer.ack(message)
    send, receive, process, work = (
        *spans.named("send t"),
        *spans.named("receive t"),
        *spans.named("process t"),
        *spans.named("work"),
    )
    assert {trace_id(span) for span in (send, receive, process, work)} == {trace_id(send)}
    assert (receive.kind, links(receive)) == (SpanKind.CLIENT, [span_id(send)])
    assert parent_id(process) == span_id(send)
    assert parent_id(work) == span_id(process)


def test_processing_without_tracing_does_nothing(mq: Connection, admin: Admin, spans: Spans) -> None:
    assert admin is not None
    with Producer(mq, "p") as producer, SimpleConsumer(mq, "g", {"t": "*"}) as consumer:
        producer.send(Message("t", b"body"))
        (message,) = consumer.receive()
        with consumer.processing(message):
            assert "traceparent" not in message.properties
    assert spans.all() == []


def test_pull_consumer_receives_in_the_trace(traced: Connection, spans: Spans) -> None:
    with Producer(traced, "p") as producer, PullConsumer(traced, "g") as consumer:
        queue = producer.send(Message("t", b"body")).queue
        (message,) = consumer.poll(queue)
        with consumer.processing([message]):
            pass
    assert {trace_id(span) for span in spans.all()} == {trace_id(spans.named("send t")[0])}
    assert [span.name for span in spans.all()] == ["send t", "receive t", "process t"]


def ways(producer: Producer) -> dict[str, Callable[[Message], object]]:
    return {
        "send": producer.send,
        "send_async": lambda message: producer.send_async(message).result(10),
        "asend": lambda message: asyncio.run(producer.asend(message)),
        "send_oneway": producer.send_oneway,
        "send_batch": lambda message: producer.send_batch([message]),
        "asend_batch": lambda message: asyncio.run(producer.asend_batch([message])),
        "send_table": lambda message: producer.send_table("t", pa.table({"b": [message.body]}), "b"),
        "delayed": lambda message: producer.send(Message("t", message.body, delay_level=1)),
        "timer": lambda message: producer.send(Message("t", message.body, deliver_at=time.time() + 0.3)),
    }


@pytest.mark.parametrize("linger", [0.0, 0.01])
def test_every_send_carries_its_context(linger: float, traced: Connection, spans: Spans) -> None:
    with Producer(traced, "p", linger=linger) as producer:
        sends = ways(producer)
        for name, send in sends.items():
            send(Message("t", name.encode()))
        received = receive_all(traced, "g", len(sends))
    assert {message.body.decode() for message in received} == sends.keys()
    parents = {traceparent(span) for span in spans.named("send t")}
    assert len(parents) == len(sends)
    assert {message.properties["traceparent"] for message in received} == parents


def test_user_message_is_unchanged(traced: Connection, spans: Spans) -> None:
    message = Message("t", b"body", properties={"a": "b"})
    with Producer(traced, "p") as producer:
        keys = {producer.send(message).unique_key for _ in range(2)}
    assert keys == {message.unique_key}
    assert dict(message.properties) == {"a": "b"}
    assert b"traceparent" not in message.own_properties
    assert len({message.properties["traceparent"] for message in receive_all(traced, "g", 2)}) == 2


def test_carried_context_is_the_parent_without_current_span(traced: Connection, spans: Spans) -> None:
    carried = f"00-{1:032x}-{2:016x}-01"
    with Producer(traced, "p") as producer:
        producer.send(Message("t", b"body", properties={"traceparent": carried, "tracestate": "a=b"}))
        with trace.get_tracer("test").start_as_current_span("request") as request:
            producer.send(Message("t", b"body", properties={"traceparent": carried}))
    first, second = spans.named("send t")
    assert (trace_id(first), parent_id(first)) == (1, 2)
    assert trace_id(second) == request.get_span_context().trace_id
    received = {message.properties["traceparent"]: message for message in receive_all(traced, "g", 2)}
    assert received.keys() == {traceparent(first), traceparent(second)}
    assert received[traceparent(first)].properties["tracestate"] == "a=b"
    assert "tracestate" not in received[traceparent(second)].properties


def test_full_properties_are_sent_without_context(traced: Connection, spans: Spans) -> None:
    with Producer(traced, "p") as producer:
        producer.send(Message("t", b"body", properties={"a": "b" * 31_000}))
    (message,) = receive_all(traced, "g", 1)
    assert message.properties.keys() == {"a"}
    assert len(spans.named("send t")) == 1


def test_failed_send_names_its_error(services: Services, traced: Connection, spans: Spans) -> None:
    with Producer(traced, "p", timeout=1.0, retries=0) as producer:
        producer.send(Message("t", b"body"))
        for name in services.names:
            services.stop_broker(name)
        with pytest.raises(NotStored):
            producer.send(Message("t", b"body"))
        with pytest.raises(NotStored):
            producer.send_async(Message("t", b"body")).result(10)
        failed = spans.wait_for("send t", 3)[1:]
        for name in services.names:
            services.start_broker(name)
    assert [attributes(span)["error.type"] for span in failed] == ["NotStored"] * 2
    assert {span.status.status_code for span in failed} == {StatusCode.ERROR}


@pytest.mark.parametrize("commits", [True, False])
def test_transaction_is_one_trace(commits: bool, traced: Connection, spans: Spans) -> None:
    seen: list[str] = []

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        seen.extend(message.properties["traceparent"] for message in messages)
        return ConsumeResult.SUCCESS

    with Producer(traced, "p") as producer, PushConsumer(traced, "g", {"t": "*"}, listener):
        with producer.transaction(Message("t", b"body")) as transaction:
            if not commits:
                transaction.rollback()
        if commits:
            spans.wait_for("process t")
    (send,) = spans.named("send t")
    assert attributes(send)["messaging.rocketmq.message.type"] == "transaction"
    names = ["send t", "commit t", "process t"] if commits else ["send t", "rollback t"]
    assert sorted(span.name for span in spans.all()) == sorted(names)
    assert {trace_id(span) for span in spans.all()} == {trace_id(send)}
    assert seen == [traceparent(send)] * commits


def test_pickled_connection_traces(traced: Connection, mq: Connection) -> None:
    for connection, traces in ((traced, True), (mq, False)):
        with pickle.loads(pickle.dumps(connection)) as again:
            assert (again.tracer is not None) == traces


def test_context_reaches_outbox_and_later_send(
    services: Services, traced: Connection, spans: Spans, tmp_path: Path
) -> None:
    with Producer(traced, "p", timeout=1.0, retries=0, outbox=tmp_path / "outbox.db") as producer:
        for name in services.names:
            services.stop_broker(name)
        with pytest.raises(NotStored):
            producer.send(Message("t", b"body"))
        for name in services.names:
            services.start_broker(name)
        (message,) = receive_all(traced, "g", 1)
    assert message.properties["traceparent"] == traceparent(spans.named("send t")[0])
