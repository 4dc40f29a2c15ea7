"""Test that a hanging name server delays neither rebalancing nor a recall."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from raymq.client import (
    Admin,
    BrokerUnavailable,
    Connection,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    RecallStatus,
)
from tests.integration.cable import Cable
from tests.integration.conftest import Services
from tests.integration.recording_listener import RecordingListener
from tests.polling import poll_until

pytestmark = pytest.mark.integration

TOPICS = [f"t{number}" for number in range(12)]


@pytest.fixture
def cable(services: Services) -> Iterator[Cable]:
    """Yield a cable to the name server."""
    host, _, port = services.name_server.address.rpartition(":")
    made = Cable((host, int(port)))
    services.loop.run(made.start())
    yield made
    services.loop.run(made.stop())


@pytest.mark.long
def test_queues_of_dead_member_are_taken_over(services: Services, mq: Connection, cable: Cable) -> None:
    """With twelve topics, each topic used to wait the 3 s of a name server request, one after another."""
    admin, producer = Admin(mq), Producer(mq, "p")
    for topic in TOPICS:
        admin.create_topic(topic, queues=1)
    queues = [MessageQueue(topic, broker, 0) for topic in TOPICS for broker in ("broker-a", "broker-b")]
    stays, dies = RecordingListener(), RecordingListener()
    with Connection([cable.address]) as first, Connection([cable.address]) as second:
        staying = PushConsumer(first, "g", dict.fromkeys(TOPICS, "*"), stays)
        staying.start()
        PushConsumer(second, "g", dict.fromkeys(TOPICS, "*"), dies).start()

        def is_shared() -> bool:
            owners = {queue: found.owner for queue, found in admin.group_progress("g").items() if queue in queues}
            return len(owners) == len(queues) and len(set(owners.values())) == 2 and None not in owners.values()

        poll_until(is_shared, 60)
        services.loop.run(_run_on_loop(lambda: cable.freeze(new_ones=True)))
        second.run(second.pool.close())  # closes its sockets, so the brokers see it as dead
        for queue in queues:
            producer.send(Message(queue.topic, str(queue).encode()), queue=queue)
        poll_until(lambda: len(stays.taken) + len(dies.taken) >= len(queues) and stays.taken, 60)
        poll_until(
            lambda: set(stays.bodies) >= {str(queue).encode() for queue in queues if queue not in _queues_of(dies)}, 60
        )
        services.loop.run(_run_on_loop(cable.thaw))
        with Connection([services.name_server.address]) as other:
            Admin(other).update_topic("t0", queues=2)
        added = MessageQueue("t0", "broker-a", 1)
        Producer(mq, "q").send(Message("t0", b"added"), queue=added)
        poll_until(lambda: b"added" in stays.bodies, 60, "what changes is seen when it answers again")


def _queues_of(taker: RecordingListener) -> set[MessageQueue]:
    return {message.queue for message in taker.taken}


async def _run_on_loop(action: Any) -> None:
    action()


def test_recall_respects_its_timeout(mq: Connection, services: Services, admin: Admin, cable: Cable) -> None:
    """A recall waited 3 s for the name server, whatever its own timeout."""
    del admin
    sent = Producer(mq, "p").send(Message("t", b"x", deliver_at=time.time() + 600.0))
    services.loop.run(_run_on_loop(lambda: cable.freeze(new_ones=True)))
    with Connection([cable.address]) as hanging, Producer(hanging, "q") as producer:
        begun = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            producer.recall(sent, timeout=0.5)
        assert time.monotonic() - begun < 2.0
    services.loop.run(_run_on_loop(cable.thaw))
    assert Producer(mq, "p").recall(sent, timeout=30.0) is RecallStatus.WITHDRAWN
