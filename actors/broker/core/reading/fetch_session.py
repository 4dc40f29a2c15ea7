"""Fetch many queues within one limit of messages and bytes.

No I/O except the store's memory maps.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.groups.client_registry import FetchPosition
from raymq.actors.broker.core.reading.filtered_reader import ScanBudget, read_filtered
from raymq.actors.broker.core.reading.long_poll import QueueKey
from raymq.actors.errors import OffsetOutOfRange, OffsetReset, PermissionDenied, QueueNotFound, RayMQError
from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.actors.filter.tag_expression import MessageFilter
from raymq.actors.protocol import PERM_READ

#: A fetch stops after this many queues that cannot be read.
MAX_ERRORS: Final = 100

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class QueueFetchResult:
    """The result of a fetch for one queue.

    `next_offset` is where the next fetch continues; `error` is set if the queue cannot be read. `pieces` are the
    records as they lie in the log: views that keep its mapping alive.
    """

    index: int
    next_offset: int
    min_offset: int
    max_offset: int
    pieces: Sequence[memoryview] = ()
    sizes: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    offsets: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    error: RayMQError | None = None


@dataclass(slots=True, eq=False)
class _QueueCursor(FetchPosition):
    """The position of a fetch in one queue."""

    index: int
    topic: str
    queue_id: int
    filter: MessageFilter
    passes_all: bool
    incarnation: int


class FetchSession:
    """A fetch in progress: its position in each queue, and its remaining limits.

    One call of `read_available` is one fetch. A caller that reads again after arrivals, while the session is not
    exhausted, continues the same fetch. The session is exhausted when one of its limits is used up, or when a queue
    could not be read: the client then has to send a new request.
    """

    def __init__(
        self,
        core: BrokerCore,
        specs: Sequence[FetchSpec],
        max_messages: int,
        max_bytes: int,
        group: str | None = None,
        *,
        check_crc: bool = True,
    ) -> None:
        """Create a session; with `group`, check its permission and its offset resets.

        `check_crc` is False for a client that verifies the checksums of the bodies itself, and that fetches again if
        one is wrong.
        """
        self._core = core
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._group = group
        self._check_crc = check_crc
        self._failed = False
        self._places = [
            _QueueCursor(
                want.offset,
                index,
                want.topic,
                want.queue_id,
                want.filter,
                want.filter.passes_all,
                core.store.incarnation(want.topic) if want.incarnation is None else want.incarnation,
            )
            for index, want in enumerate(specs)
        ]
        self._by_queue: dict[QueueKey, _QueueCursor] = {(place.topic, place.queue_id): place for place in self._places}
        self._behind: dict[QueueKey, None] = {}
        self._filters = any(place.filter.sql is not None for place in self._places)
        epoch = core.store.epoch
        older = [index for index, want in enumerate(specs) if want.epoch != epoch and want.epoch is not None]
        self._older = [(self._places[index], specs[index].epoch) for index in older]
        #: Whether the client has to receive the store's epoch before anything else.
        self.is_stale = bool(self._older)

    @property
    def positions(self) -> Mapping[QueueKey, FetchPosition]:
        """Return the queues of the session with their positions, which move when messages are read."""
        return self._by_queue

    @property
    def is_exhausted(self) -> bool:
        """Return True if the session may return no more messages."""
        return self._failed or self._max_messages <= 0 or self._max_bytes <= 0

    @property
    def has_backlog(self) -> bool:
        """Return True if the last read left existing messages unread."""
        return bool(self._behind)

    def read_available(self, arrived: Collection[QueueKey] | None = None) -> list[QueueFetchResult]:
        """Read every queue in turn until a limit is reached; omit queues without news.

        A queue of which only filtered-out entries were seen is in the result, with its `next_offset` and no records. A
        queue that cannot be read is in the result with its error. The error is OffsetReset if the group's offset was
        reset, or if the log has lost messages that the client has read.

        Args:
            arrived: read only these queues, and those with messages that the last read left unread.
        """
        if self._older and (lost := self._lost()):
            self._failed = True
            return lost
        places = self._places
        if arrived is not None:
            places = [self._by_queue[queue] for queue in {**self._behind, **dict.fromkeys(arrived)}]
        elif self._filters:  # the scan budget may end early: start at a random queue, so that none is always skipped
            first = random.randrange(len(places))
            places = places[first:] + places[:first]
        self._behind = {}
        behind: dict[QueueKey, None] = {}
        scan = ScanBudget()
        parts: list[QueueFetchResult] = []
        errors = 0
        for place in places:
            if self._max_messages <= 0 or self._max_bytes <= 0 or errors >= MAX_ERRORS:
                break
            part = self._part(place, scan)
            if part.error is not None or part.next_offset != place.offset:
                parts.append(part)
                errors += part.error is not None
                self._failed = self._failed or part.error is not None
                self._max_messages -= len(part.sizes)
                self._max_bytes -= int(part.sizes.sum())
                place.offset = part.next_offset
                if part.next_offset < part.max_offset:
                    behind[place.topic, place.queue_id] = None
            elif part.next_offset < part.max_offset:  # nothing of it was examined: it comes first next time
                self._behind[place.topic, place.queue_id] = None
        self._behind |= behind
        return parts

    def _part(self, place: _QueueCursor, scan: ScanBudget) -> QueueFetchResult:
        """Read one queue; any error is reported for this queue only."""
        try:
            if self._group is not None:
                self._core.group_settings.check_may_consume(self._group, place.topic)
            return self._restart(place) or self._moved(place) or self._read(place, scan)
        except RayMQError as error:
            return QueueFetchResult(place.index, place.offset, 0, 0, error=error)
        except Exception as error:  # noqa: BLE001 - any failure concerns this queue only
            _log.exception("queue %d of %s cannot be read at %d", place.queue_id, place.topic, place.offset)
            failure = RayMQError(f"{type(error).__name__}: {error}")
            return QueueFetchResult(place.index, place.offset, 0, 0, error=failure)

    def take_next(self, queue: QueueKey, offset: int, size: int) -> int | None:
        """Take the one message that was just stored; return the index of its queue.

        The index is that among the wanted queues; `size` is in bytes. The result is None if the caller has to use
        `read_available`: other messages are pending as well, or the message is not wanted.
        """
        place = self._by_queue[queue]
        if (
            place.offset != offset
            or not place.passes_all
            or self._behind
            or self.is_exhausted
            or not self._may_read(place)
        ):
            return None
        if self._group is not None and (
            self._core.offsets.has_pending_reset(self._group, *queue)
            or not self._core.group_settings.can_consume(self._group, place.topic)
        ):
            return None
        if self._core.store.incarnation(place.topic) > place.incarnation:
            return None
        place.offset = offset + 1
        self._max_messages -= 1
        self._max_bytes -= size
        return place.index

    def _may_read(self, place: _QueueCursor) -> bool:
        config = self._core.store.topic_configs.get(place.topic)
        return config is not None and bool(config.perm & PERM_READ)

    def _restart(self, place: _QueueCursor) -> QueueFetchResult | None:
        """Return an error result if the topic was deleted and recreated, else None."""
        core, topic, queue_id = self._core, place.topic, place.queue_id
        if core.store.incarnation(topic) <= place.incarnation:
            return None
        error = core.offsets.after_recreation(self._group, topic, queue_id)
        return QueueFetchResult(place.index, place.offset, 0, 0, error=error)

    def _lost(self) -> list[QueueFetchResult]:
        """Return error results for clients that read messages which the log has lost.

        The messages that are now stored at these offsets are new to these clients. Only these clients are sent back,
        not their group: other members may have read on since.
        """
        core, parts = self._core, []
        for place, epoch in self._older:
            topic, queue_id = place.topic, place.queue_id
            valid_to = core.store.valid_to(topic, queue_id, epoch) if epoch else None
            if valid_to is None or place.offset <= valid_to:
                continue
            error = core.offsets.after_loss(self._group, topic, queue_id, valid_to)
            parts.append(QueueFetchResult(place.index, place.offset, 0, 0, error=error))
        self._older = []
        return parts

    def _moved(self, place: _QueueCursor) -> QueueFetchResult | None:
        """Return an OffsetReset result if the client has not followed a reset, else None.

        The reset is one of the group's offset in that queue.
        """
        core, topic, queue_id = self._core, place.topic, place.queue_id
        if self._group is None or topic not in core.topics:
            return None
        target = core.offsets.follow_reset(self._group, topic, queue_id, place.offset)
        return None if target is None else QueueFetchResult(place.index, place.offset, 0, 0, error=OffsetReset(target))

    def _read(self, place: _QueueCursor, scan: ScanBudget) -> QueueFetchResult:
        core, topic, queue_id, index, offset = self._core, place.topic, place.queue_id, place.index, place.offset
        try:
            if not core.topic(topic).perm & PERM_READ:
                raise PermissionDenied(f"topic {topic} may not be read on {core.name}")
            low, high = core.store.min_offset(topic, queue_id), core.store.max_offset(topic, queue_id)
            if offset == high:
                return QueueFetchResult(index, high, low, high)
            limits = self._max_messages, self._max_bytes
            with read_filtered(
                core.store, topic, queue_id, offset, *limits, place.filter, check_crc=self._check_crc, scan=scan
            ) as lease:
                return QueueFetchResult(
                    index, lease.next_offset, low, high, lease.parts, lease.sizes, lease.queue_offsets
                )
        except QueueNotFound as error:
            exists = core.store.topic_configs.get(topic)
            if exists is not None and 0 <= queue_id < exists.read_queues:  # a queue that was never written
                if offset == 0:
                    return QueueFetchResult(index, 0, 0, 0)
                return QueueFetchResult(index, offset, 0, 0, error=OffsetOutOfRange(offset, 0, 0))
            return QueueFetchResult(index, offset, 0, 0, error=error)
