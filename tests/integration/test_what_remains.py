"""What a drain waits for is what any consumer group waits for, and not only those that the broker knows."""

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


def test_what_a_group_has_not_consumed_that_was_away_when_it_came_is_left(
    services: Services, mq: Connection, admin: Admin
) -> None:
    """A broker was called empty, and went with messages that a stopped group would have got when it was started again:
    the group had offsets on other brokers alone, since this one had come, or its first messages had, while it was away.
    """
    admin.create_topic("nobodys", queues=1)
    with Producer(mq, "tests") as producer, PullConsumer(mq, "g") as consumer:
        for queue, count in ((ELSEWHERE, 2), (HERE, 3), (MessageQueue("nobodys", "broker-b", 0), 4)):
            for _ in range(count):
                producer.send(Message(queue.topic, b"x"), queue=queue)
        consumer.commit(ELSEWHERE, 2)
        ground = ClusterClient(mq, "ns")
        remains = mq.run(ground.leftovers_for_all("broker-b", ["broker-a"]))
        assert remains is not None
        assert describe_pending(remains) == "3 messages of t for group g"
        assert describe_pending(remains, frozenset({"g"})) == ""
        consumer.commit(HERE, 3)
        remains = mq.run(ground.leftovers_for_all("broker-b", ["broker-a"]))
        assert remains is not None
        assert describe_pending(remains) == ""


def test_a_group_that_is_not_waited_for_hides_no_other_one(services: Services, mq: Connection, admin: Admin) -> None:
    """Where the broker itself knew of one the others were not asked: with `--without-group` for that one the drained
    broker was called empty, and went with what another group would have got.
    """
    with Producer(mq, "tests") as producer, PullConsumer(mq, "g") as g, PullConsumer(mq, "abandoned") as abandoned:
        for queue, count in ((ELSEWHERE, 2), (HERE, 3)):
            for _ in range(count):
                producer.send(Message(queue.topic, b"x"), queue=queue)
        g.commit(ELSEWHERE, 2)
        abandoned.commit(HERE, 1)
        ground = ClusterClient(mq, "ns")
        without = frozenset({"abandoned"})
        remains = mq.run(ground.leftovers_for_all("broker-b", ["broker-a"], without))
        assert remains is not None
        assert describe_pending(remains, without) == "3 messages of t for group g"
        g.commit(HERE, 3)
        remains = mq.run(ground.leftovers_for_all("broker-b", ["broker-a"], without))
        assert remains is not None
        assert describe_pending(remains, without) == ""


def test_others_are_not_asked_as_long_as_something_is_waited_for_anyway(
    services: Services, mq: Connection, admin: Admin
) -> None:
    """Each of a drain's looks, five in a second, cost all brokers a walk through all groups, for weeks where it waited
    for a timer.
    """
    with Producer(mq, "tests") as producer, PullConsumer(mq, "g") as consumer:
        producer.send(Message("t", b"x"), queue=HERE)
        producer.send(Message("t", b"x"), queue=ELSEWHERE)
        producer.send(Message("t", b"x", deliver_at=time.time() + 600), queue=HERE)
        consumer.commit(ELSEWHERE, 1)
    ground = ClusterClient(mq, "ns")
    services.stop_broker("broker-a")
    remains = mq.run(ground.leftovers_for_all("broker-b", ["broker-a"]))
    assert remains is not None
    assert describe_pending(remains) == "1 timers"


def test_a_broker_that_is_away_is_waited_for_since_it_may_know_of_one(
    services: Services, mq: Connection, admin: Admin
) -> None:
    ground = ClusterClient(mq, "ns")
    poll_until(lambda: "broker-a" in services.brokers["broker-b"].core.homes.members)
    services.stop_broker("broker-a")

    def left() -> DrainBacklog | str | None:
        try:
            return mq.run(ground.leftovers_for_all("broker-b", ["broker-a"]))
        except BrokerUnavailable as error:
            return str(error)

    assert "broker-a" in str(poll_until(left))
    assert mq.run(ground.remains("broker-b")) is not None
    admin.forget_broker("broker-a")  # else it would be waited for without end
    poll_until(lambda: isinstance(left(), DrainBacklog))
