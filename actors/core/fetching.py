"""One fetch for many queues: what each has, within one limit of messages and bytes. No I/O but the store's mappings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from raymq.actors.core.broker import BrokerCore
from raymq.actors.core.filtered_reading import read_filtered
from raymq.actors.core.filters import Filter
from raymq.actors.core.sql_filter import SqlFilter
from raymq.actors.errors import OffsetOutOfRange, PermissionDenied, QueueNotFound, RayMQError
from raymq.actors.protocol import PERM_READ


@dataclass(frozen=True, slots=True)
class Wanted:
    """One queue of a fetch: from `offset` on, only what has a tags code of these (None: all) and passes `sql`."""

    topic: str
    queue_id: int
    offset: int
    tags_codes: frozenset[int] | None = None
    sql: SqlFilter | None = None


@dataclass(slots=True)
class Part:
    """What a fetch found in one queue. `next_offset` is where the next one goes on; `error` if it cannot be read."""

    index: int
    next_offset: int
    min_offset: int
    max_offset: int
    records: bytes = b""
    sizes: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    offsets: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    error: RayMQError | None = None


def fetch(core: BrokerCore, wanted: Sequence[Wanted], max_messages: int, max_bytes: int) -> list[Part]:
    """Read every wanted queue in turn until a limit is reached. Queues that have nothing new are left out.

    A queue of which only skipped (filtered out) entries were seen is in the answer with its `next_offset` and no
    records; one that cannot be read is in it with its error.
    """
    parts: list[Part] = []
    for index, want in enumerate(wanted):
        if max_messages <= 0 or max_bytes <= 0:
            break
        part = _read(core, index, want, max_messages, max_bytes)
        if part.error is not None or part.next_offset != want.offset:
            parts.append(part)
            max_messages -= len(part.sizes)
            max_bytes -= len(part.records)
    return parts


def _read(core: BrokerCore, index: int, want: Wanted, max_messages: int, max_bytes: int) -> Part:
    try:
        if not core.topic(want.topic).perm & PERM_READ:
            raise PermissionDenied(f"topic {want.topic} may not be read on {core.name}")
        wanted = Filter(want.tags_codes, want.sql)
        with read_filtered(
            core.store, want.topic, want.queue_id, want.offset, max_messages, max_bytes, wanted
        ) as lease:
            low = core.store.min_offset(want.topic, want.queue_id)
            high = core.store.max_offset(want.topic, want.queue_id)
            return Part(index, lease.next_offset, low, high, bytes(lease.records), lease.sizes, lease.queue_offsets)
    except QueueNotFound as error:
        exists = core.store.topic_configs.get(want.topic)
        if exists is not None and 0 <= want.queue_id < exists.read_queues:  # a queue that was never written
            if want.offset == 0:
                return Part(index, 0, 0, 0)
            return Part(index, want.offset, 0, 0, error=OffsetOutOfRange(want.offset, 0, 0))
        return Part(index, want.offset, 0, 0, error=error)
    except RayMQError as error:
        return Part(index, want.offset, 0, 0, error=error)
