"""One fetch for many queues: what each has, within one limit of messages and bytes. No I/O but the store's mappings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from raymq.actors.core.broker import BrokerCore
from raymq.actors.core.filtered_reading import read_filtered
from raymq.actors.core.filters import Filter
from raymq.actors.core.long_poll import QueueKey
from raymq.actors.core.sql_filter import SqlFilter
from raymq.actors.errors import OffsetOutOfRange, OffsetReset, PermissionDenied, QueueNotFound, RayMQError
from raymq.actors.protocol import PERM_READ


@dataclass(frozen=True, slots=True)
class Wanted:
    """One queue of a fetch: from `offset` on, only what has a tags code of these (None: all) and passes `sql`."""

    topic: str
    queue_id: int
    offset: int
    tags_codes: frozenset[int] | None = None
    sql: SqlFilter | None = None

    @property
    def filter(self) -> Filter:
        """What is wanted of the queue."""
        return Filter(self.tags_codes, self.sql)


@dataclass(slots=True)
class Part:
    """What a fetch found in one queue. `next_offset` is where the next one goes on; `error` if it cannot be read.

    `pieces` are the records as they lie in the log: views that keep its mapping alive.
    """

    index: int
    next_offset: int
    min_offset: int
    max_offset: int
    pieces: Sequence[memoryview] = ()
    sizes: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    offsets: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    error: RayMQError | None = None


def fetch(
    core: BrokerCore,
    wanted: Sequence[Wanted],
    max_messages: int,
    max_bytes: int,
    group: str | None = None,
    *,
    check_crc: bool = True,
    only: QueueKey | None = None,
) -> list[Part]:
    """Read every wanted queue in turn until a limit is reached. Queues that have nothing new are left out.

    A queue of which only skipped (filtered out) entries were seen is in the answer with its `next_offset` and no
    records; one that cannot be read is in it with its error, OffsetReset where `group` was sent elsewhere. `check_crc`
    is False for a client that compares the bodies' checksums itself, and asks again where one is wrong. With `only` one
    of the queues is looked at: the others are known to have nothing new.
    """
    parts: list[Part] = []
    for index, want in enumerate(wanted):
        if max_messages <= 0 or max_bytes <= 0:
            break
        if only is not None and only != (want.topic, want.queue_id):
            continue
        part = _moved(core, index, want, group) or _read(core, index, want, (max_messages, max_bytes), check_crc)
        if part.error is not None or part.next_offset != want.offset:
            parts.append(part)
            max_messages -= len(part.sizes)
            max_bytes -= int(part.sizes.sum())
    return parts


def _moved(core: BrokerCore, index: int, want: Wanted, group: str | None) -> Part | None:
    """What a group that was sent elsewhere is told, once it has not gone there yet."""
    if group is None or want.topic not in core.topics:
        return None
    target = core.offsets.heed_reset(group, want.topic, want.queue_id, want.offset)
    return None if target is None else Part(index, want.offset, 0, 0, error=OffsetReset(target))


def _read(core: BrokerCore, index: int, want: Wanted, limits: tuple[int, int], check_crc: bool) -> Part:
    try:
        if not core.topic(want.topic).perm & PERM_READ:
            raise PermissionDenied(f"topic {want.topic} may not be read on {core.name}")
        low = core.store.min_offset(want.topic, want.queue_id)
        high = core.store.max_offset(want.topic, want.queue_id)
        if want.offset == high:
            return Part(index, high, low, high)
        with read_filtered(
            core.store, want.topic, want.queue_id, want.offset, *limits, want.filter, check_crc=check_crc
        ) as lease:
            return Part(index, lease.next_offset, low, high, lease.parts, lease.sizes, lease.queue_offsets)
    except QueueNotFound as error:
        exists = core.store.topic_configs.get(want.topic)
        if exists is not None and 0 <= want.queue_id < exists.read_queues:  # a queue that was never written
            if want.offset == 0:
                return Part(index, 0, 0, 0)
            return Part(index, want.offset, 0, 0, error=OffsetOutOfRange(want.offset, 0, 0))
        return Part(index, want.offset, 0, 0, error=error)
    except RayMQError as error:
        return Part(index, want.offset, 0, 0, error=error)
