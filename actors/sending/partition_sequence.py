"""Sequence numbers of an idempotent producer's batches, per queue.

The module performs no I/O.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from raymq.actors.protocol import MessageQueue
from raymq.storage.records.producer_sequence import ProducerSequence


@dataclass(slots=True)
class PartitionSequence:
    """The sequence of one queue, with at most one batch in progress at a time.

    `epochs` yields the producer's epochs. No two sequences share an epoch, so a sequence that was dropped and created
    again never repeats a number of the former one.
    """

    producer: str
    queue: MessageQueue
    epochs: Iterator[int]
    epoch: int = field(init=False)
    next: int = 0

    def __post_init__(self) -> None:
        self.epoch = next(self.epochs)

    def sequence(self, count: int) -> ProducerSequence:
        """Return the number of the next batch.

        It stays the same until `stored` or `begin_epoch`.
        """
        return ProducerSequence(self.producer, self.epoch, self.next, count)

    def stored(self, count: int) -> None:
        """Count a batch that is in the log."""
        self.next += count

    def begin_epoch(self) -> None:
        """Begin an epoch, after the broker lost the sequence or an outcome stayed unknown.

        The broker refuses batches of the former epoch that arrive later.
        """
        self.epoch = next(self.epochs)
        self.next = 0


@dataclass(slots=True)
class PartitionSequences:
    """The sequences of one producer; every producer has a new random id."""

    producer: str = field(default_factory=lambda: secrets.token_hex(8))
    _lanes: dict[MessageQueue, PartitionSequence] = field(default_factory=dict)
    _epochs: Iterator[int] = field(default_factory=count)

    def of(self, queue: MessageQueue) -> PartitionSequence:
        """Return the sequence of a queue. Any thread."""
        known = self._lanes.get(queue)
        return known or self._lanes.setdefault(queue, PartitionSequence(self.producer, queue, self._epochs))

    def forget(self, queue: MessageQueue) -> None:
        """Drop the sequence of a queue without a batch in progress. Any thread.

        The next batch to the queue begins an epoch.
        """
        self._lanes.pop(queue, None)
