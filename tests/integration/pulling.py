"""A pull consumer, and what there is for it to read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from raymq.client import Connection, Message, MessageQueue, Producer, PullConsumer


@contextmanager
def before_messages(mq: Connection, queue: MessageQueue, count: int) -> Iterator[PullConsumer]:
    """One of the group "g" that is before the first of `count` messages, numbered in their bodies."""
    with Producer(mq, "p") as producer:
        for number in range(count):
            producer.send(Message(queue.topic, b"%d" % number), queue=queue)
    with PullConsumer(mq, "g") as pull:
        pull.seek(queue, 0)
        yield pull
