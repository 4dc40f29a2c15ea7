"""The high watermark: the end of the confirmed log, which alone decides what readers see.

A message is visible once nothing that the configuration provides for can take it back. With async flush that is
immediately: the high watermark is the end of the log. With sync flush it is the end of the log on disk. With replicas
it is the smaller one of that and of what every replica in the in-sync set has, as far as that is known here (`hold`,
`advance`). The high watermark never goes back while a store is open.

It determines each queue's *readable maximum*. The entries of a queue lie in the order of the log, so the readable
maximum is the first entry whose record does not end at or before the high watermark, or the queue's read barrier if
that comes first: the records of a commit become visible together (`read_barrier`). Reads, waits, hand-overs and all
answers about a queue's end use it. The broker's internal tasks may read records that are written but not confirmed: the
records they write lie behind those in the log, so they cannot become visible earlier, nor survive without them.
"""

from __future__ import annotations

from raymq.storage.log.commit_log import CommitLog
from raymq.storage.log.consume_queue import ConsumeQueue


class HighWatermark:
    """The confirmed end of one log and of its queues.

    It belongs to the store's writer; the high watermark may move on any thread.

    Attributes:
        is_immediate: whether appended records are confirmed at once, so that no caller has to wait for the high
            watermark.
    """

    def __init__(self, log: CommitLog, *, durable: bool) -> None:
        """Create the high watermark; with `durable` only records on disk are confirmed."""
        self._log = log
        self.is_immediate = not durable
        self._durable = durable
        self._held: int | None = None

    @property
    def offset(self) -> int:
        """Return the high watermark, a physical offset.

        The log before it is confirmed; a record that ends behind it is not.
        """
        log = self._log
        own = log.flushed_offset if self._durable else log.max_offset
        return own if self._held is None else min(own, self._held)

    @property
    def replicated_to(self) -> int | None:
        """Return the end of what replicas have confirmed, as known here; None without replicas."""
        return self._held

    @property
    def durable_offset(self) -> int:
        """Return the end of the log that is on disk here and on any replicas."""
        flushed = self._log.flushed_offset
        return flushed if self._held is None else min(flushed, self._held)

    def hold(self, confirmed: int) -> None:
        """Confirm only what the replicas have from now on.

        It must be called before the first read: otherwise readers may have seen records that become invisible again.

        Args:
            confirmed: the end of what the replicas have, as far as it is known now.
        """
        self._held = max(0, min(confirmed, self._log.max_offset))
        self.is_immediate = False

    def advance(self, confirmed: int) -> None:
        """Record that the replicas have the log up to `confirmed`.

        A value below the present one has no effect.
        """
        assert self._held is not None, "the high watermark is not held back"
        self._held = max(self._held, confirmed)

    def readable_end(self, queue: ConsumeQueue) -> int:
        """Return the queue's readable maximum: the offset after the last visible message."""
        if self.is_immediate or (point := self.offset) >= self._log.max_offset:
            end = queue.max_offset
        else:
            end = queue.confirmed_end(point)
        barrier_offset = queue.barrier_offset
        return end if barrier_offset is None or end <= barrier_offset else max(barrier_offset, queue.min_offset)
