"""Up to where the log is confirmed: the one place that decides which messages readers see.

A message may be seen once nothing that the configuration provides for can take it back. With async flush that is at
once: the point is the end of the log. With sync flush it is what is on disk. (With replicas it will be the smaller one
of that and what every replica in sync has.) The point never goes back while a store is open.

From it follows each queue's *readable maximum*: the entries of a queue lie in the order of the log, so it is the first
entry whose record does not end at or before the point. Reads, waits, hand-overs and all answers about a queue's end go
by it. The broker's own duties may look at what is written and not confirmed: what they make of it lies behind it in the
log, so it cannot be seen before it, nor outlive it.
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

    @property
    def offset(self) -> int:
        """The log before this physical offset is confirmed; records end there, none is cut."""
        log = self._log
        return log.max_offset if self.at_once else log.flushed_offset

    def end_of(self, queue: ConsumeQueue) -> int:
        """The queue's readable maximum: the offset behind the last message that may be seen."""
        log = self._log
        if self.at_once or (point := log.flushed_offset) >= log.max_offset:
            return queue.max_offset
        return queue.confirmed_end(point)
