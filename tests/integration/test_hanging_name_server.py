"""A name server that hangs holds up neither the sharing out of queues nor a send: what is known serves."""

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
from tests.integration.taker import Taker
from tests.polling import poll_until

pytestmark = pytest.mark.integration

TOPICS = [f"t{number}" for number in range(12)]


@pytest.fixture
def cable(services: Services) -> Iterator[Cable]:
    """The way to the name server."""
    host, _, port = services.name_server.address.rpartition(":")
    made = Cable((host, int(port)))
    services.loop.run(made.start())
    yield made
    services.loop.run(made.stop())


@pytest.mark.long
def test_the_queues_of_a_member_that_dies_are_taken_over(services: Services, mq: Connection, cable: Cable) -> None:
    """Twelve topics, one of which after the other took the three seconds that a name server is given."""
    admin, producer = Admin(mq), Producer(mq, "p")
    for topic in TOPICS:
        admin.create_topic(topic, queues=1)
    queues = [MessageQueue(topic, broker, 0) for topic in TOPICS for broker in ("broker-a", "broker-b")]
    stays, dies = Taker(), Taker()
    with Connection([cable.address]) as first, Connection([cable.address]) as second:
        staying = PushConsumer(first, "g", dict.fromkeys(TOPICS, "*"), stays)
        staying.start()
        PushConsumer(second, "g", dict.fromkeys(TOPICS, "*"), dies).start()

        def is_shared() -> bool:
            owners = {queue: found.owner for queue, found in admin.group_progress("g").items() if queue in queues}
            return len(owners) == len(queues) and len(set(owners.values())) == 2 and None not in owners.values()

        poll_until(is_shared, 60)
        services.loop.run(_at_once(lambda: cable.freeze(new_ones=True)))
        second.run(second.pool.close())  # its sockets end: it is dead to the brokers
        for queue in queues:
            producer.send(Message(queue.topic, str(queue).encode()), queue=queue)
        poll_until(lambda: len(stays.taken) + len(dies.taken) >= len(queues) and stays.taken, 60)
        poll_until(lambda: set(stays.bodies) >= {str(queue).encode() for queue in queues if queue not in _of(dies)}, 60)
        services.loop.run(_at_once(cable.thaw))
        with Connection([services.name_server.address]) as other:
            Admin(other).update_topic("t0", queues=2)
        added = MessageQueue("t0", "broker-a", 1)
        Producer(mq, "q").send(Message("t0", b"added"), queue=added)
        poll_until(lambda: b"added" in stays.bodies, 60, "what changes is seen when it answers again")


def _of(taker: Taker) -> set[MessageQueue]:
    return {message.queue for message in taker.taken}


async def _at_once(action: Any) -> None:
    action()


def test_a_recall_keeps_to_its_time(mq: Connection, services: Services, admin: Admin, cable: Cable) -> None:
    """Its name server had three seconds, whatever its own time was."""
    del admin
    sent = Producer(mq, "p").send(Message("t", b"x", deliver_at=time.time() + 600.0))
    services.loop.run(_at_once(lambda: cable.freeze(new_ones=True)))
    with Connection([cable.address]) as hanging, Producer(hanging, "q") as producer:
        begun = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            producer.recall(sent, timeout=0.5)
        assert time.monotonic() - begun < 2.0
    services.loop.run(_at_once(cable.thaw))
    assert Producer(mq, "p").recall(sent, timeout=30.0) is RecallStatus.WITHDRAWN
