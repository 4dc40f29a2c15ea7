"""Group the queues of a broker into batches that fit into one fetch. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from raymq.actors.protocol import MessageQueue
from raymq.actors.request_limits import MAX_FETCHED


class QueueBatch(NamedTuple):
    """A batch of queues of one broker, at most `MAX_FETCHED`.

    Nearly all consumers have one batch per broker.
    """

    broker: str
    number: int

    def __str__(self) -> str:
        return f"{self.broker}, part {self.number + 1}" if self.number else self.broker


class QueueBatches:
    """The batches of one consumer's queues.

    A queue stays in its batch as long as it is assigned to the consumer.
    """

    def __init__(self, most: int = MAX_FETCHED) -> None:
        self._most = most
        self._shares: dict[MessageQueue, QueueBatch] = {}
        self._counts: Counter[QueueBatch] = Counter()

    def of(self, queue: MessageQueue) -> QueueBatch:
        """Return a queue's batch; add a new queue to its broker's first batch with room."""
        share = self._shares.get(queue)
        if share is None:
            share = QueueBatch(queue.broker, 0)
            while self._counts[share] >= self._most:
                share = QueueBatch(share.broker, share.number + 1)
            self._shares[queue] = share
            self._counts[share] += 1
        return share

    def keep_only(self, queues: Collection[MessageQueue]) -> None:
        """Remove all queues but these, which makes room in their batches."""
        for queue in self._shares.keys() - queues:
            self._counts[self._shares.pop(queue)] -= 1
