"""Test that ConsumeFrom.LAST skips only messages older than the group, in any queue."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from raymq.actors.errors import BrokerUnavailable
from raymq.actors.naming import retry_topic
from raymq.client import Admin, Connection, ConsumeFrom, ConsumeResult, Message, MessageQueue, Producer, PushConsumer
from raymq.client.push import push_consumer_engine
from tests.integration.conftest import Services
from tests.integration.recording_listener import RecordingListener
from tests.polling import poll_until

pytestmark = pytest.mark.integration

LAST = ConsumeFrom.LAST
QUEUES = [MessageQueue("t", broker, queue_id) for broker in ("broker-a", "broker-b") for queue_id in range(2)]


@pytest.fixture(autouse=True)
def _rebalance_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push_consumer_engine, "REBALANCE_SECONDS", 2.0)


def test_retry_in_undiscovered_retry_topic_is_delivered(
    mq: Connection, admin: Admin, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the member find the retry topic only after the failed message is stored."""
    taker = RecordingListener(lambda message: ConsumeResult.RECONSUME_LATER if message.reconsume_times == 0 else None)
    retried, routes, is_visible = retry_topic("g"), mq.routes.get, threading.Event()

    async def get(topic: str, **options: Any) -> Any:
        if topic == retried and not is_visible.is_set():
            raise BrokerUnavailable("name servers", "none answers")
        return await routes(topic, **options)

    monkeypatch.setattr(mq.routes, "get", get)
    with PushConsumer(mq, "g", {"t": "*"}, taker, consume_from=LAST), Connection(mq.name_servers) as other:
        Producer(other, "p").send(Message("t", b"precious"))
        known = Admin(other)

        def is_retry_stored() -> bool:
            return retried in known.topics(system=True) and any(
                stats.max_offset for stats in known.topic_stats(retried).values()
            )

        poll_until(is_retry_stored, 20)
        is_visible.set()
        poll_until(lambda: taker.bodies == [b"precious"], 20)


def test_messages_in_added_queues_are_delivered(mq: Connection, admin: Admin) -> None:
    taker = RecordingListener()
    producer = Producer(mq, "p")
    for queue in QUEUES:
        producer.send(Message("t", b"before the group"), queue=queue)
    with PushConsumer(mq, "g", {"t": "*"}, taker, consume_from=LAST), Connection(mq.name_servers) as other:
        Admin(other).update_topic("t", queues=4)
        poll_until(lambda: all(len(mq.run(mq.routes.get("t", fresh=True)).readable()) == 8 for _ in "x"), 10)
        added = [MessageQueue("t", broker, queue_id) for broker in ("broker-a", "broker-b") for queue_id in (2, 3)]
        sent = [b"%s %d %d" % (q.broker.encode(), q.queue_id, n) for q in [*QUEUES, *added] for n in range(3)]
        for body in sent:
            broker, queue_id, _ = body.decode().split()
            Producer(other, "q").send(Message("t", body), queue=MessageQueue("t", broker, int(queue_id)))
        poll_until(lambda: len(taker.taken) >= len(sent), 20, "what was sent to the new queues comes, too")
    assert taker.bodies == sorted(sent)


def test_messages_on_joining_broker_are_delivered(mq: Connection, admin: Admin, services: Services) -> None:
    services.stop_broker("broker-b")
    poll_until(lambda: list(mq.run(mq.routes.get("t", fresh=True)).addresses) == ["broker-a"], 20)
    taker = RecordingListener()
    with PushConsumer(mq, "g", {"t": "*"}, taker, consume_from=LAST), Connection(mq.name_servers) as other:
        services.start_broker("broker-b")
        sent = [b"%d" % number for number in range(5)]
        for body in sent:
            Producer(other, "p").send(Message("t", body), queue=MessageQueue("t", "broker-b", 0))
        poll_until(lambda: taker.bodies == sent, 30)


def test_concurrently_started_members_begin_at_queue_end(mq: Connection, admin: Admin) -> None:
    producer = Producer(mq, "p")
    for queue in QUEUES:
        producer.send(Message("t", b"before the group"), queue=queue)
    takers = [RecordingListener() for _ in range(3)]
    members = [PushConsumer(mq, "g", {"t": "*"}, taker, consume_from=LAST) for taker in takers]
    starting = [threading.Thread(target=member.start) for member in members]
    for thread in starting:
        thread.start()
    for thread in starting:
        thread.join(30)
    for queue in QUEUES:
        producer.send(Message("t", b"new"), queue=queue)
    poll_until(lambda: sum(len(taker.taken) for taker in takers) >= len(QUEUES), 20)
    assert [message.body for taker in takers for message in taker.taken] == [b"new"] * len(QUEUES)
    for member in members:
        member.shutdown()
