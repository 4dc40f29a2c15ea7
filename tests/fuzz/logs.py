"""Read the brokers' content, to compare it with the clients' reports."""

from __future__ import annotations

from raymq.client import Connection, MessageQueue, PullConsumer


def bodies_of(mq: Connection, topic: str) -> dict[MessageQueue, list[bytes]]:
    """Return all messages of each queue of the topic, from offset 0 on."""
    found: dict[MessageQueue, list[bytes]] = {}
    with PullConsumer(mq, "reader") as consumer:
        for queue in consumer.queues(topic):
            consumer.seek(queue, 0)
            end = consumer.offsets(queue)[1]
            bodies = found[queue] = []
            while len(bodies) < end:
                bodies += [message.body for message in consumer.poll(queue, 1_000, timeout=5.0)]
    return found
