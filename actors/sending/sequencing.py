"""The producing side of idempotence: which number a batch gets in its queue. No I/O."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from raymq.actors.protocol import MessageQueue
from raymq.storage.records.producer_sequence import ProducerSequence


@dataclass(slots=True)
class SequenceLane:
    """One queue's count. At most one batch is under way in it at a time."""

    producer: str
    queue: MessageQueue
    epoch: int = 0
    next: int = 0

    def sequence(self, count: int) -> ProducerSequence:
        """The number of the batch that comes next, the same until `stored` or `begin_epoch`."""
        return ProducerSequence(self.producer, self.epoch, self.next, count)

    def stored(self, count: int) -> None:
        """The batch is in the log."""
        self.next += count

    def begin_epoch(self) -> None:
        """Begin anew: the broker does not know the count, or nobody knows whether the last batch was stored.

        Whatever of the old epoch arrives later is refused.
        """
        self.epoch += 1
        self.next = 0


@dataclass(slots=True)
class SequenceLanes:
    """One producer's lanes; its id is new with every producer."""

    producer: str = field(default_factory=lambda: secrets.token_hex(8))
    _lanes: dict[MessageQueue, SequenceLane] = field(default_factory=dict)

    def of(self, queue: MessageQueue) -> SequenceLane:
        """The lane of a queue."""
        return self._lanes.setdefault(queue, SequenceLane(self.producer, queue))
