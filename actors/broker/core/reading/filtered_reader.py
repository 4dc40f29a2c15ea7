"""Read a queue through a filter.

An SQL expression is evaluated on whole batches of records, and the matching records are selected.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from raymq.actors.filter.sql_filter import SqlFilter
from raymq.actors.filter.tag_expression import MessageFilter
from raymq.storage.log.lease import Lease
from raymq.storage.store import Store

#: One request examines this many messages, or bytes of them, before it answers that it found none so far.
SCAN_MESSAGES = 8_192
SCAN_BYTES = 16 << 20
_BATCH_MESSAGES = 2_048
_BATCH_BYTES = 4 << 20
#: The fixed cost of a batch, as a number of messages.
_BATCH_WORK = 256
#: This many characters of an expression cost about as much as all other work for a message.
_WORK_CHARACTERS = 128


@dataclass(slots=True)
class ScanBudget:
    """The remaining messages and bytes that one request may examine with SQL expressions.

    All queues of the request share it. A message costs more the longer the expression is, so that the time on the event
    loop is bounded.
    """

    messages: int = field(default_factory=lambda: SCAN_MESSAGES)
    bytes: int = field(default_factory=lambda: SCAN_BYTES)

    @property
    def is_exhausted(self) -> bool:
        """Return True if no more messages may be examined."""
        return self.messages <= 0 or self.bytes <= 0

    def charge(self, lease: Lease, work: int) -> None:
        """Charge the budget for a batch, each of whose messages costs `work`."""
        self.messages -= (len(lease) + _BATCH_WORK) * work
        self.bytes -= len(lease.records)


def read_filtered(
    store: Store,
    topic: str,
    queue_id: int,
    offset: int,
    max_messages: int,
    max_bytes: int,
    message_filter: MessageFilter,
    *,
    check_crc: bool = True,
    scan: ScanBudget | None = None,
) -> Lease:
    """Do `Store.read` for the messages that pass `message_filter`; raises the same.

    Like a read by tags it may return no records although later ones would pass: continue at `next_offset`.

    Args:
        scan: shared by all queues of a request; None = this read has its own.
    """
    if message_filter.sql is None:
        return store.read(
            topic, queue_id, offset, max_messages, max_bytes, message_filter.tags_codes, check_crc=check_crc
        )
    scan = ScanBudget() if scan is None else scan
    work = 1 + len(message_filter.sql.expression) // _WORK_CHARACTERS
    found = Lease([], np.empty(0, np.int32), np.empty(0, np.int64), offset)
    while not len(found) and not scan.is_exhausted:
        lease = store.read(
            topic,
            queue_id,
            offset,
            max(min(_BATCH_WORK, _BATCH_MESSAGES), _BATCH_MESSAGES // work),
            _BATCH_BYTES,
            check_crc=check_crc,
        )
        if not len(lease):
            return lease
        scan.charge(lease, work)
        found = _passing(lease, message_filter.sql, max_messages, max_bytes)
        offset = found.next_offset
    return found


def _passing(lease: Lease, sql: SqlFilter, max_messages: int, max_bytes: int) -> Lease:
    """Return the records of a lease that pass the filter, within both limits.

    At least one record is returned if any passes.
    """
    records, sizes = lease.records, lease.sizes
    chosen = np.flatnonzero(sql.mask(records, sizes))
    chosen_sizes = sizes[chosen].astype(np.int64)
    take = max(1, int(np.searchsorted(np.cumsum(chosen_sizes), max_bytes, "right")))
    take = min(take, max_messages, len(chosen))
    next_offset = lease.next_offset if take == len(chosen) else int(lease.queue_offsets[chosen[take]])
    chosen = chosen[:take]
    ends = np.cumsum(sizes, dtype=np.int64)
    cuts = np.flatnonzero(np.diff(chosen) != 1) + 1  # neighbours stay in one piece
    parts = [
        records[int(ends[run[0]] - sizes[run[0]]) : int(ends[run[-1]])] for run in np.split(chosen, cuts) if len(run)
    ]
    return Lease(parts, sizes[chosen], lease.queue_offsets[chosen], next_offset)
