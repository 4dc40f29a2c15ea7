"""The producing side of idempotence: which number a batch gets in its queue. No I/O."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from raymq.actors.protocol import MessageQueue
from raymq.storage.records.producer_sequence import ProducerSequence


@dataclass(slots=True)
class SequenceLane:
    """One queue's count. At most one batch is under way in it at a time.

    `epochs` numbers the epochs of its producer: no two lanes have the same one, so that a lane which was forgotten and
    made anew says nothing that the former one has said.
    """

    producer: str
    queue: MessageQueue
    epochs: Iterator[int]
    epoch: int = field(init=False)
    next: int = 0

    def __post_init__(self) -> None:
        self.epoch = next(self.epochs)

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
        self.epoch = next(self.epochs)
        self.next = 0


@dataclass(slots=True)
class SequenceLanes:
    """One producer's lanes; its id is new with every producer."""

    producer: str = field(default_factory=lambda: secrets.token_hex(8))
    _lanes: dict[MessageQueue, SequenceLane] = field(default_factory=dict)
    _epochs: Iterator[int] = field(default_factory=count)

    def of(self, queue: MessageQueue) -> SequenceLane:
        """The lane of a queue. Any thread."""
        known = self._lanes.get(queue)
        return known or self._lanes.setdefault(queue, SequenceLane(self.producer, queue, self._epochs))

    def forget(self, queue: MessageQueue) -> None:
        """Nothing is under way in a queue's lane; the next one begins an epoch. Any thread."""
        self._lanes.pop(queue, None)
