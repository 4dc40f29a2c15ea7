"""Sequence numbers of an idempotent producer's batches, per queue.

A broker that gets a batch again recognises its number. One batch at a time is in progress per queue; it holds the
queue's mutex. The module performs no I/O.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from raymq.actors.protocol import MessageQueue
from raymq.storage.records.producer_sequence import ProducerSequence

#: The most queues whose sequence a producer keeps.
MAX_SEQUENCES: Final = 10_000


class QueueMutex:
    """A fair mutex, granted in the order of the requests.

    Any thread may take and release it; waiting is possible on one event loop only. It uses no lock, because a signal
    handler may send on the very thread that it has interrupted. To check that the mutex is free and to take it is one
    atomic step. The mutex stores its holder, so that code that was interrupted anywhere can still release it.
    """

    __slots__ = ("_holder", "_waiting")

    def __init__(self) -> None:
        #: The holder, under the single key None.
        self._holder: dict[None, object] = {}
        self._waiting: deque[tuple[asyncio.Future[None], object]] = deque()

    def take(self, who: object) -> bool:
        """Take the mutex if it is free and has no waiter; return True if taken."""
        if self._waiting:
            self._call()
            return False
        return self._holder.setdefault(None, who) is who

    @property
    def is_free(self) -> bool:
        """Return True if the mutex has no holder and no waiter."""
        return not self._holder and not self._waiting

    def has(self, who: object) -> bool:
        """Return True if `who` holds the mutex."""
        return self._holder.get(None) is who

    async def wait(self, who: object) -> None:
        """Wait for the mutex in turn, and take it."""
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append((mine, who))
        self._hand_on()
        try:
            await mine
        except asyncio.CancelledError:
            with contextlib.suppress(ValueError):  # it was granted just now, and is released below
                self._waiting.remove((mine, who))
            self.release(who)
            raise

    def release(self, who: object) -> None:
        """Release the mutex, if `who` holds it, and pass it on."""
        if self._holder.get(None) is who:
            del self._holder[None]
        if self._waiting:
            self._call()

    def _call(self) -> None:
        """Schedule the handover to the first waiter on its event loop."""
        if self._waiting:
            with contextlib.suppress(IndexError, RuntimeError):  # no waiter is left, or its loop has closed
                self._waiting[0][0].get_loop().call_soon_threadsafe(self._hand_on)

    def _hand_on(self) -> None:
        """Grant the free mutex to the first waiter, on the event loop of the waiters."""
        while self._waiting:
            waiting, who = self._waiting[0]
            if not waiting.done():
                if self._holder.setdefault(None, who) is not who:
                    return
                waiting.set_result(None)
            self._waiting.popleft()


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


class HeldSequence:
    """One batch's hold on a queue: the mutex, and the sequence that it protects.

    If the hold is garbage-collected, for example after an interrupt at any place, it ends as that of a batch that may
    be stored.
    """

    __slots__ = ("_turn", "_who", "count")

    def __init__(self, turn: QueueMutex, count: PartitionSequence) -> None:
        self.count = count
        self._turn = turn
        #: The holder object for the mutex, which must not reference this hold. None: the mutex is released.
        self._who: object | None = object()

    def take(self) -> bool:
        """Take the mutex if it is free and no batch waits for it."""
        return self._turn.take(self._who)

    async def wait(self) -> None:
        """Wait for the mutex in turn, and take it."""
        await self._turn.wait(self._who)

    def stored(self, records: int) -> None:
        """Count the records that are in the log, and release the mutex."""
        self.count.stored(records)
        if self._who is not None:
            self._turn.release(self._who)
            self._who = None

    def end(self) -> None:
        """Release the mutex, if it is held, after a batch that may be stored."""
        if self._who is not None and self._turn.has(self._who):
            self.count.begin_epoch()  # The batch may be stored: its number must not be used again.
            self._turn.release(self._who)

    def __del__(self) -> None:
        if getattr(self, "_who", None) is not None:  # it lacks `_who` if `__init__` was interrupted
            self.end()


class PartitionSequences:
    """The sequences of one producer, which has a new random id unless one is given."""

    def __init__(self, producer: str | None = None) -> None:
        self.producer = producer or secrets.token_hex(8)
        self._epochs = count()
        self._queues: dict[MessageQueue, tuple[QueueMutex, PartitionSequence]] = {}

    def __len__(self) -> int:
        return len(self._queues)

    def hold(self, queue: MessageQueue) -> HeldSequence:
        """Return a new hold on the queue's sequence, for one batch. Any thread."""
        known = self._queues.get(queue)
        if known is None:
            if len(self._queues) >= MAX_SEQUENCES:
                self._forget_some()
            made = QueueMutex(), PartitionSequence(self.producer, queue, self._epochs)
            known = self._queues.setdefault(queue, made)
        return HeldSequence(*known)

    def _forget_some(self) -> None:
        """Drop the older half of the queues, as far as they are idle.

        The next batch to such a queue begins an epoch.
        """
        for queue, (mutex, _) in list(self._queues.items())[: MAX_SEQUENCES // 2]:
            if mutex.is_free:
                self._queues.pop(queue, None)
