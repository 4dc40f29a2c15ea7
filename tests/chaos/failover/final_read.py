"""Read the content of a cluster's queues at the end, by an ordinary consumer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from raymq.client import Connection, MessageQueue, PullConsumer, RayMQError
from tests.chaos.failover.nemesis import Nemesis
from tests.chaos.failover.recorded import HistoryFile, Place, Stored
from tests.chaos.failover.senders import TOPICS
from tests.polling import poll_until

_PATIENCE_SECONDS: Final = 60.0
_AT_ONCE: Final = 2_000


def note_end(nemesis: Nemesis, path: Path) -> None:
    """Record the faults, the register's states, and what is in the queues now."""
    history = HistoryFile(path)
    history.write(nemesis.faults)
    history.write(nemesis.cluster.reigned)
    try:
        history.write(read_stored(nemesis.cluster.name_servers))
    except (AssertionError, RayMQError) as error:
        nemesis.stuck.append(f"nothing can be read at the end: {error}")
    history.close()


def read_stored(name_servers: Sequence[str]) -> Iterator[Stored]:
    """Yield every message of the load's topics."""
    mq = Connection(name_servers)
    try:
        with PullConsumer(mq, "chaos-final") as consumer:
            for topic in TOPICS:
                for queue in poll_until(lambda t=topic: _queues(consumer, t), _PATIENCE_SECONDS, f"queues of {topic}"):  # type: ignore[misc]
                    yield from _read_queue(consumer, queue)
    finally:
        mq.close()


def _queues(consumer: PullConsumer, topic: str) -> list[MessageQueue]:
    try:
        return consumer.queues(topic)
    except RayMQError:
        return []


def _read_queue(consumer: PullConsumer, queue: MessageQueue) -> Iterator[Stored]:
    begin, end = poll_until(lambda: _ends(consumer, queue), _PATIENCE_SECONDS, f"the ends of {queue}")
    position, deadline = begin, time.monotonic() + _PATIENCE_SECONDS
    consumer.seek(queue, begin)
    while position < end:
        try:
            found = consumer.poll(queue, _AT_ONCE, timeout=5.0)
        except RayMQError:
            if time.monotonic() > deadline:
                raise
            continue
        for message in found:
            place = Place(queue.topic, queue.broker, queue.queue_id, message.queue_offset)
            yield Stored(int(message.body), place, message.store_timestamp)
        if found:
            position, deadline = found[-1].queue_offset + 1, time.monotonic() + _PATIENCE_SECONDS
        elif time.monotonic() > deadline:
            return  # the checks report missing messages


def _ends(consumer: PullConsumer, queue: MessageQueue) -> tuple[int, int] | None:
    try:
        return consumer.offsets(queue)
    except RayMQError:
        return None
