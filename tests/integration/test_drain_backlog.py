"""Test that a drain waits for all consumer groups, also for groups unknown to the broker."""

from __future__ import annotations

import time

import pytest

from raymq.actors.wire.commands.drain_commands import DrainBacklog
from raymq.client import Admin, BrokerUnavailable, Connection, Message, MessageQueue, Producer, PullConsumer
from raymq.cluster.elastic.cluster_client import ClusterClient
from raymq.cluster.elastic.drain_planner import describe_pending
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration

HERE, ELSEWHERE = MessageQueue("t", "broker-b", 1), MessageQueue("t", "broker-a", 0)


def test_drain_waits_for_group_without_offsets_on_broker(services: Services, mq: Connection, admin: Admin) -> None:
    """Cover a regression: a drained broker left with messages of a stopped group.

    The group had offsets on other brokers only, since this broker, or its first messages, came while the group was
    stopped.
    """
    admin.create_topic("nobodys", queues=1)
    with Producer(mq, "tests") as producer, PullConsumer(mq, "g") as consumer:
        for queue, count in ((ELSEWHERE, 2), (HERE, 3), (MessageQueue("nobodys", "broker-b", 0), 4)):
            for _ in range(count):
                producer.send(Message(queue.topic, b"x"), queue=queue)
        consumer.commit(ELSEWHERE, 2)
        client = ClusterClient(mq, "ns")
        remains = mq.run(client.leftovers_for_all("broker-b", ["broker-a"]))
        assert remains is not None
        assert describe_pending(remains) == "3 messages of t for group g"
        assert describe_pending(remains, frozenset({"g"})) == ""
        consumer.commit(HERE, 3)
        remains = mq.run(client.leftovers_for_all("broker-b", ["broker-a"]))
        assert remains is not None
        assert describe_pending(remains) == ""


def test_excluded_group_does_not_hide_other_groups(services: Services, mq: Connection, admin: Admin) -> None:
    """Cover a regression: `--without-group` hid the messages of another group.

    If the broker itself knew of one group, the other brokers were not asked. With `--without-group` for that group the
    drained broker was reported empty.
    """
    with Producer(mq, "tests") as producer, PullConsumer(mq, "g") as g, PullConsumer(mq, "abandoned") as abandoned:
        for queue, count in ((ELSEWHERE, 2), (HERE, 3)):
            for _ in range(count):
                producer.send(Message(queue.topic, b"x"), queue=queue)
        g.commit(ELSEWHERE, 2)
        abandoned.commit(HERE, 1)
        client = ClusterClient(mq, "ns")
        without = frozenset({"abandoned"})
        remains = mq.run(client.leftovers_for_all("broker-b", ["broker-a"], without))
        assert remains is not None
        assert describe_pending(remains, without) == "3 messages of t for group g"
        g.commit(HERE, 3)
        remains = mq.run(client.leftovers_for_all("broker-b", ["broker-a"], without))
        assert remains is not None
        assert describe_pending(remains, without) == ""


def test_other_brokers_are_not_asked_while_backlog_remains(services: Services, mq: Connection, admin: Admin) -> None:
    """Cover a regression: each check of a drain made all brokers scan all groups.

    A drain checks five times a second, for weeks if it waits for a timer.
    """
    with Producer(mq, "tests") as producer, PullConsumer(mq, "g") as consumer:
        producer.send(Message("t", b"x"), queue=HERE)
        producer.send(Message("t", b"x"), queue=ELSEWHERE)
        producer.send(Message("t", b"x", deliver_at=time.time() + 600), queue=HERE)
        consumer.commit(ELSEWHERE, 1)
    client = ClusterClient(mq, "ns")
    services.stop_broker("broker-a")
    remains = mq.run(client.leftovers_for_all("broker-b", ["broker-a"]))
    assert remains is not None
    assert describe_pending(remains) == "1 timers"


def test_drain_waits_for_unavailable_broker(services: Services, mq: Connection, admin: Admin) -> None:
    client = ClusterClient(mq, "ns")
    poll_until(lambda: "broker-a" in services.brokers["broker-b"].core.coordinators.members)
    services.stop_broker("broker-a")

    def left() -> DrainBacklog | str | None:
        try:
            return mq.run(client.leftovers_for_all("broker-b", ["broker-a"]))
        except BrokerUnavailable as error:
            return str(error)

    assert "broker-a" in str(poll_until(left))
    assert mq.run(client.remains("broker-b")) is not None
    admin.forget_broker("broker-a")  # otherwise the drain would wait for it forever
    poll_until(lambda: isinstance(left(), DrainBacklog))
