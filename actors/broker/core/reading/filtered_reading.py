"""Reading a queue through a filter: what an SQL expression is true of is picked out of whole batches of records."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from raymq.actors.filter.sql_filter import SqlFilter
from raymq.actors.filter.subscription import Filter
from raymq.storage.log.lease import Lease
from raymq.storage.store import Store

#: One request looks at this many messages, or bytes of them, before it answers that it found none so far.
SCAN_MESSAGES = 8_192
SCAN_BYTES = 16 << 20
_BATCH_MESSAGES = 2_048
_BATCH_BYTES = 4 << 20
#: A batch costs as much as so many of its messages, whatever it holds.
_BATCH_WORK = 256
#: So many characters of an expression are about as much work as everything else.
_WORK_CHARACTERS = 128


@dataclass(slots=True)
class Scan:
    """How much one request may yet look at through expressions, in all of its queues together.

    Looking at a message counts for more the longer the expression is, so that the loop's time is bounded.
    """

    messages: int = field(default_factory=lambda: SCAN_MESSAGES)
    bytes: int = field(default_factory=lambda: SCAN_BYTES)

    @property
    def is_over(self) -> bool:
        """Whether nothing more may be looked at."""
        return self.messages <= 0 or self.bytes <= 0

    def looked_at(self, lease: Lease, work: int) -> None:
        """Count a batch, each of whose messages is so much work."""
        self.messages -= (len(lease) + _BATCH_WORK) * work
        self.bytes -= len(lease.records)


def read_filtered(
    store: Store,
    topic: str,
    queue_id: int,
    offset: int,
    max_messages: int,
    max_bytes: int,
    wanted: Filter,
    *,
    check_crc: bool = True,
    scan: Scan | None = None,
) -> Lease:
    """`Store.read` of the messages that pass `wanted`; raises the same.

    Like a read by tags it may return none although more would pass: go on at `next_offset`.

    Args:
        scan: shared by all queues of a request; None = this one has its own.
    """
    if wanted.sql is None:
        return store.read(topic, queue_id, offset, max_messages, max_bytes, wanted.tags_codes, check_crc=check_crc)
    scan = Scan() if scan is None else scan
    work = 1 + len(wanted.sql.expression) // _WORK_CHARACTERS
    found = Lease([], np.empty(0, np.int32), np.empty(0, np.int64), offset)
    while not len(found) and not scan.is_over:
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
        scan.looked_at(lease, work)
        found = _passing(lease, wanted.sql, max_messages, max_bytes)
        offset = found.next_offset
    return found


def _passing(lease: Lease, sql: SqlFilter, max_messages: int, max_bytes: int) -> Lease:
    """Of a lease's records those that pass, at least one if there is one, then up to both limits."""
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
