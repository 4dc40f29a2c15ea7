"""Up to where the log is confirmed: the one place that decides which messages readers see.

A message may be seen once nothing that the configuration provides for can take it back. With async flush that is at
once: the point is the end of the log. With sync flush it is what is on disk. With replicas it is the smaller one of
that and what every replica in sync has, as far as that is known here (`hold`, `advance`). The point never goes back
while a store is open.

From it follows each queue's *readable maximum*: the entries of a queue lie in the order of the log, so it is the first
entry whose record does not end at or before the point, or the queue's veil where that comes first: what a commit
appends is seen as a whole (`veils`). Reads, waits, hand-overs and all answers about a queue's end go by it. The
broker's own duties may look at what is written and not confirmed: what they make of it lies behind it in the log, so it
cannot be seen before it, nor outlive it.
"""

from __future__ import annotations

from raymq.storage.log.commit_log import CommitLog
from raymq.storage.log.consume_queue import ConsumeQueue


class ConfirmPoint:
    """The confirmed end of one log and of its queues. Belongs to the store's writer; the point moves on any thread.

    Attributes:
        at_once: whether what is appended is confirmed by that, so that nobody needs to wait for the point.
    """

    def __init__(self, log: CommitLog, *, durable: bool) -> None:
        """`durable`: only what is on disk is confirmed."""
        self._log = log
        self.at_once = not durable
        self._durable = durable
        self._held: int | None = None

    @property
    def offset(self) -> int:
        """The log before this physical offset is confirmed; a record that ends behind it is not."""
        log = self._log
        own = log.flushed_offset if self._durable else log.max_offset
        return own if self._held is None else min(own, self._held)

    @property
    def held(self) -> int | None:
        """Up to where replicas have confirmed, as far as that is known; None: there is one copy."""
        return self._held

    @property
    def safe(self) -> int:
        """Up to where the log is on disk here, and replicas have it, if there are any."""
        flushed = self._log.flushed_offset
        return flushed if self._held is None else min(flushed, self._held)

    def hold(self, confirmed: int) -> None:
        """From now on only what the replicas have is confirmed, too.

        It comes before anybody reads: a store that has shown more would take it back.

        Args:
            confirmed: up to where they have it, as far as that is known now.
        """
        self._held = max(0, min(confirmed, self._log.max_offset))
        self.at_once = False

    def advance(self, confirmed: int) -> None:
        """The replicas have the log up to here; what is below the point it knows already changes nothing."""
        assert self._held is not None, "the point is not held"
        self._held = max(self._held, confirmed)

    def end_of(self, queue: ConsumeQueue) -> int:
        """The queue's readable maximum: the offset behind the last message that may be seen."""
        if self.at_once or (point := self.offset) >= self._log.max_offset:
            end = queue.max_offset
        else:
            end = queue.confirmed_end(point)
        veiled_from = queue.veiled_from
        return end if veiled_from is None or end <= veiled_from else max(veiled_from, queue.min_offset)
