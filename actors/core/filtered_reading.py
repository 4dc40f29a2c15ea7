"""Reading a queue through a filter: what an SQL expression is true of is picked out of whole batches of records."""

from __future__ import annotations

import numpy as np

from raymq.actors.core.filters import Filter
from raymq.actors.core.sql_filter import SqlFilter
from raymq.storage.lease import Lease
from raymq.storage.store import Store

#: One call looks at this many messages, or bytes of them, before it answers that it found none so far.
SCAN_MESSAGES = 8_192
SCAN_BYTES = 16 << 20
_BATCH_MESSAGES = 2_048
_BATCH_BYTES = 4 << 20


def read_filtered(
    store: Store, topic: str, queue_id: int, offset: int, max_messages: int, max_bytes: int, wanted: Filter
) -> Lease:
    """`Store.read` of the messages that pass `wanted`; raises the same.

    Like a read by tags it may return none although more would pass: go on at `next_offset`.
    """
    if wanted.sql is None:
        return store.read(topic, queue_id, offset, max_messages, max_bytes, wanted.tags_codes)
    scanned_messages = scanned_bytes = 0
    while True:
        lease = store.read(topic, queue_id, offset, _BATCH_MESSAGES, _BATCH_BYTES)
        if not len(lease):
            return lease
        scanned_messages += len(lease)
        scanned_bytes += len(lease.records)
        found = _passing(lease, wanted.sql, max_messages, max_bytes)
        if len(found) or scanned_messages >= SCAN_MESSAGES or scanned_bytes >= SCAN_BYTES:
            return found
        offset = found.next_offset


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
