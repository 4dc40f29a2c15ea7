"""Test timed delivery of messages and their recall, over real sockets."""

from __future__ import annotations

import time

import pytest

from raymq.actors.errors import MessageIllegal
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import ServerConnection
from raymq.client import (
    Admin,
    Connection,
    ConsumeFrom,
    InvalidInput,
    Message,
    MessageQueue,
    NotRecallable,
    Producer,
    PushConsumer,
    RecallStatus,
)
from tests.integration.conftest import Services
from tests.integration.foreign_client import ForeignClient
from tests.integration.recording_listener import RecordingListener
from tests.polling import poll_until

pytestmark = pytest.mark.integration


@pytest.mark.long
def test_delete_expired_keeps_files_of_waiting_timers(
    services: Services, mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = services.brokers["broker-a"]
    queue, taker = MessageQueue("t", "broker-a", 0), RecordingListener()
    with Producer(mq, "p") as producer:
        due = time.time() + 6.0
        for number in range(10):
            producer.send(Message("t", b"%d" % number, deliver_at=due), queue=queue)
        while broker.store.max_physical_offset < 2 * broker.store.config.commitlog_file_bytes:
            producer.send(Message("t", bytes(1 << 20), tags="filling"), queue=queue)
    now_ms = broker.store._age.now_ms
    poll_until(lambda: broker.store._log.flushed_offset == broker.store.max_physical_offset)
    monkeypatch.setattr(broker.store._age, "now_ms", lambda: now_ms() + 73 * 3_600_000)
    with ForeignClient(broker.address) as client:

        def is_deleted() -> bool:
            client.done(Command(RequestCode.DELETE_EXPIRED_COMMITLOG))
            client.done(Command(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE))
            return broker.store.min_physical_offset > 0

        poll_until(is_deleted)
    monkeypatch.undo()
    with PushConsumer(mq, "g", {"t": "*"}, taker, consume_from=ConsumeFrom.FIRST):
        poll_until(lambda: len([body for body in taker.bodies if len(body) == 1]) == 10, 30)


def test_timed_message_is_not_delivered_early(mq: Connection, admin: Admin) -> None:
    producer, taker = Producer(mq, "p"), RecordingListener()
    with PushConsumer(mq, "g", {"t": "*"}, taker):
        start = time.time()
        dues = {b"%d" % n: start + 2.0 + n * 0.1 for n in (3, 1, 2, 0)}
        sent = [
            producer.send(Message("t", body, tags="a", keys=["k"], properties={"p": "v"}, deliver_at=due))
            for body, due in dues.items()
        ]
        assert {result.queue.topic for result in sent} == {"rmq_sys_wheel_timer"}
        assert all(result.recall_handle for result in sent)
        poll_until(lambda: len(taker.taken) >= len(dues), 10)
    for message in taker.taken:
        assert dues[message.body] <= message.store_timestamp
        assert (message.topic, message.tags, message.keys, message.properties) == ("t", "a", ["k"], {"p": "v"})
        assert message.reconsume_times == 0
    assert {message.unique_key for message in taker.taken} == {result.unique_key for result in sent}
    assert taker.bodies == sorted(dues)


def test_past_delivery_time_delivers_immediately(mq: Connection, admin: Admin) -> None:
    producer = Producer(mq, "p")
    sent = producer.send(Message("t", b"late", deliver_at=time.time() - 10))
    assert sent.queue.topic == "t"
    with pytest.raises(NotRecallable):
        producer.recall(sent)
    assert admin.query_by_id(sent.message_id).body == b"late"


def test_invalid_delivery_times_are_refused(mq: Connection, admin: Admin) -> None:
    producer = Producer(mq, "p")
    with pytest.raises(InvalidInput, match="40 days"):
        producer.send(Message("t", b"m", deliver_at=time.time() + 41 * 86_400))
    with pytest.raises(InvalidInput):
        Message("t", b"m", delay_level=1, deliver_at=time.time())
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidInput):
            Message("t", b"m", deliver_at=wrong)
    with pytest.raises(TypeError):
        Message("t", b"m", deliver_at="tomorrow")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        producer.send_batch([Message("t", b"m", deliver_at=time.time() + 5)])


def test_recall_reports_definite_status(mq: Connection, admin: Admin) -> None:
    producer, taker = Producer(mq, "p"), RecordingListener()
    with PushConsumer(mq, "g", {"t": "*"}, taker):
        soon = producer.send(Message("t", b"soon", deliver_at=time.time() + 2.0))
        gone = producer.send(Message("t", b"gone", deliver_at=time.time() + 2.1))
        assert producer.recall(gone) is RecallStatus.WITHDRAWN
        assert producer.recall(gone.recall_handle or "") is RecallStatus.WITHDRAWN
        mark = producer.send(Message("t", b"mark", deliver_at=time.time() + 2.2))
        poll_until(lambda: b"mark" in taker.bodies, 10)
        assert producer.recall(soon) is RecallStatus.DELIVERED
        assert producer.recall(mark) is RecallStatus.DELIVERED
        assert producer.recall(gone) is RecallStatus.WITHDRAWN
    assert taker.bodies == [b"mark", b"soon"]
    with pytest.raises(NotRecallable):
        producer.recall(producer.send(Message("t", b"m", delay_level=1)))
    with pytest.raises(InvalidInput):
        producer.recall("no handle")


def test_recall_reaches_copy_of_unanswered_attempt(mq: Connection, admin: Admin, services: Services) -> None:
    deaf = services.brokers["broker-a"]._server
    handlers = deaf.handlers

    def store_without_answer(connection: ServerConnection, request: Command) -> None:
        handlers[RequestCode.APPEND_RECORDS](connection, request)

    deaf.handlers = {**handlers, RequestCode.APPEND_RECORDS: store_without_answer}
    producer, taker = Producer(mq, "p", timeout=1.5, retries=1), RecordingListener()
    with PushConsumer(mq, "g", {"t": "*"}, taker):
        due = time.time() + 3.0
        sent = [producer.send(Message("t", b"gone", deliver_at=due)) for _ in range(3)]  # 2 of 4 queues do not answer
        assert {result.queue.broker for result in sent} == {"broker-b"}
        assert any("," in (result.recall_handle or "") for result in sent), "broker-a was not tried"
        deaf.handlers = handlers
        assert [producer.recall(result) for result in sent] == [RecallStatus.WITHDRAWN] * 3
        producer.send(Message("t", b"mark", deliver_at=due))
        poll_until(lambda: b"mark" in taker.bodies, 10)
    assert taker.bodies == [b"mark"]


def test_pending_attempt_of_recalled_message_stores_nothing(mq: Connection, admin: Admin, services: Services) -> None:
    slow = services.brokers["broker-a"]._server
    handlers = slow.handlers
    under_way: list[tuple[ServerConnection, Command]] = []

    def hold_request(connection: ServerConnection, request: Command) -> None:
        under_way.append((connection, request))

    async def release_requests() -> None:
        for connection, request in under_way:
            with pytest.raises(MessageIllegal, match="unique_key"):
                handlers[RequestCode.APPEND_RECORDS](connection, request)

    slow.handlers = {**handlers, RequestCode.APPEND_RECORDS: hold_request}
    producer, taker = Producer(mq, "p", timeout=1.5, retries=1), RecordingListener()
    with PushConsumer(mq, "g", {"t": "*"}, taker):
        due = time.time() + 3.0
        sent = [producer.send(Message("t", b"gone", deliver_at=due)) for _ in range(3)]
        assert under_way, "broker-a was not tried"
        assert [producer.recall(result) for result in sent] == [RecallStatus.WITHDRAWN] * 3
        slow.handlers = handlers
        services.loop.run(release_requests(), 10)
        producer.send(Message("t", b"mark", deliver_at=due))
        poll_until(lambda: b"mark" in taker.bodies, 10)
    assert taker.bodies == [b"mark"]


def test_broker_delivers_timers_without_scheduler(mq: Connection, admin: Admin, services: Services) -> None:
    services._stopped.set()
    services._clock.result(10)
    producer, taker = Producer(mq, "p"), RecordingListener()
    with PushConsumer(mq, "g", {"t": "*"}, taker):
        due = time.time() + 0.5
        producer.send(Message("t", b"timer", deliver_at=due))
        producer.send(Message("t", b"level", delay_level=1))
        poll_until(lambda: taker.bodies == [b"level", b"timer"], 10)
    assert all(message.store_timestamp >= due - 0.001 for message in taker.taken)


def test_timers_survive_broker_restart(mq: Connection, admin: Admin, services: Services) -> None:
    producer, taker = Producer(mq, "p"), RecordingListener()
    queue = MessageQueue("t", "broker-a", 1)
    at = time.time() + 3.0
    kept = producer.send(Message("t", b"kept", deliver_at=at), queue=queue)
    gone = producer.send(Message("t", b"gone", deliver_at=at), queue=queue)
    assert producer.recall(gone) is RecallStatus.WITHDRAWN
    services.stop_broker("broker-a")
    services.start_broker("broker-a")
    with PushConsumer(mq, "g", {"t": "*"}, taker):
        assert producer.recall(gone, timeout=10) is RecallStatus.WITHDRAWN
        poll_until(lambda: taker.taken, 10)
        assert producer.recall(kept) is RecallStatus.DELIVERED
    assert taker.bodies == [b"kept"]
    assert taker.taken[0].queue == queue
    assert taker.taken[0].store_timestamp >= at
