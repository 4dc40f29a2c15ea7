"""A pull consumer with messages to read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from raymq.client import Connection, Message, MessageQueue, Producer, PullConsumer


@contextmanager
def consumer_before_messages(mq: Connection, queue: MessageQueue, count: int) -> Iterator[PullConsumer]:
    """Yield a consumer of the group "g" before the first of `count` messages, whose bodies are numbers."""
    with Producer(mq, "p") as producer:
        for number in range(count):
            producer.send(Message(queue.topic, b"%d" % number), queue=queue)
    with PullConsumer(mq, "g") as pull:
        pull.seek(queue, 0)
        yield pull
