"""One fetch for many queues: what each has, within one limit of messages and bytes. No I/O but the store's mappings."""

from __future__ import annotations

import logging
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.reading.filtered_reading import Scan, read_filtered
from raymq.actors.broker.core.reading.long_poll import QueueKey
from raymq.actors.errors import OffsetOutOfRange, OffsetReset, PermissionDenied, QueueNotFound, RayMQError
from raymq.actors.filter.subscription import Filter
from raymq.actors.filter.wanted import Wanted
from raymq.actors.protocol import PERM_READ

#: A fetch that met so many queues that cannot be read is answered with these.
MAX_ERRORS: Final = 100

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class QueuePart:
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


@dataclass(slots=True)
class _Place:
    """How far a fetch has come in one queue."""

    index: int
    topic: str
    queue_id: int
    offset: int
    filter: Filter
    passes_all: bool
    incarnation: int


class Fetch:
    """A fetch under way: how far it has come in each queue, and how much it may still give.

    Looking once is a fetch. Who looks again after arrivals, while it is not over, has one that goes on. It is over when
    one of its limits is used up, or when a queue could not be read: the client then has to ask anew.
    """

    def __init__(
        self,
        core: BrokerCore,
        wanted: Sequence[Wanted],
        max_messages: int,
        max_bytes: int,
        group: str | None = None,
        *,
        check_crc: bool = True,
    ) -> None:
        """Where `group` was sent elsewhere, or may not consume, it is told. `check_crc` is False for a client that
        compares the bodies' checksums itself, and asks again where one is wrong.
        """
        self._core = core
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._group = group
        self._check_crc = check_crc
        self._failed = False
        self._places = [
            _Place(
                index,
                want.topic,
                want.queue_id,
                want.offset,
                want.filter,
                want.filter.passes_all,
                core.store.incarnation(want.topic) if want.incarnation is None else want.incarnation,
            )
            for index, want in enumerate(wanted)
        ]
        self._by_queue: dict[QueueKey, _Place] = {(place.topic, place.queue_id): place for place in self._places}
        self._behind: dict[QueueKey, None] = {}
        self._filters = any(place.filter.sql is not None for place in self._places)
        epoch = core.store.epoch
        older = [index for index, want in enumerate(wanted) if want.epoch != epoch and want.epoch is not None]
        self._older = [(self._places[index], wanted[index].epoch) for index in older]
        #: Whether the client has to learn the store's epoch before anything else.
        self.is_stale = bool(self._older)

    @property
    def queues(self) -> Collection[QueueKey]:
        """What it reads."""
        return self._by_queue.keys()

    @property
    def is_over(self) -> bool:
        """Whether it may give no more."""
        return self._failed or self._max_messages <= 0 or self._max_bytes <= 0

    @property
    def is_behind(self) -> bool:
        """Whether the last look left something that is there."""
        return bool(self._behind)

    def look(self, arrived: Collection[QueueKey] | None = None) -> list[QueuePart]:
        """Read every queue in turn until a limit is reached. Queues that have nothing new are left out.

        A queue of which only skipped (filtered out) entries were seen is in the answer with its `next_offset` and no
        records; one that cannot be read is in it with its error, OffsetReset where the group was sent elsewhere or the
        log has lost what the client has read.

        Args:
            arrived: look at these queues alone, and at those that the last look left behind.
        """
        if self._older and (lost := self._lost()):
            self._failed = True
            return lost
        places = self._places
        if arrived is not None:
            places = [self._by_queue[queue] for queue in {**self._behind, **dict.fromkeys(arrived)}]
        elif self._filters:  # those before may be used up by then: not always the same ones behind them
            first = random.randrange(len(places))
            places = places[first:] + places[:first]
        self._behind = {}
        behind: dict[QueueKey, None] = {}
        scan = Scan()
        parts: list[QueuePart] = []
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
            elif part.next_offset < part.max_offset:  # nothing of it was looked at: it comes first then
                self._behind[place.topic, place.queue_id] = None
        self._behind |= behind
        return parts

    def _part(self, place: _Place, scan: Scan) -> QueuePart:
        """What is in one queue. What goes wrong with it, whatever it is, is told of this queue alone."""
        try:
            if self._group is not None:
                self._core.group_settings.check_may_consume(self._group, place.topic)
            return self._anew(place) or self._moved(place) or self._read(place, scan)
        except RayMQError as error:
            return QueuePart(place.index, place.offset, 0, 0, error=error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is of this queue
            _log.exception("queue %d of %s cannot be read at %d", place.queue_id, place.topic, place.offset)
            told = RayMQError(f"{type(error).__name__}: {error}")
            return QueuePart(place.index, place.offset, 0, 0, error=told)

    def take_next(self, queue: QueueKey, offset: int, size: int) -> int | None:
        """Take the one message that was just stored, of so many bytes; the index of its queue among the wanted.

        None: `look` has to decide, for it is not all that is wanted and not given yet, or it is not wanted.
        """
        place = self._by_queue[queue]
        if place.offset != offset or not place.passes_all or self._behind or self.is_over or not self._may_read(place):
            return None
        if self._group is not None and (
            self._core.offsets.awaits_reset(self._group, *queue)
            or not self._core.group_settings.may_consume(self._group, place.topic)
        ):
            return None
        if self._core.store.incarnation(place.topic) > place.incarnation:
            return None
        place.offset = offset + 1
        self._max_messages -= 1
        self._max_bytes -= size
        return place.index

    def _may_read(self, place: _Place) -> bool:
        config = self._core.store.topic_configs.get(place.topic)
        return config is not None and bool(config.perm & PERM_READ)

    def _anew(self, place: _Place) -> QueuePart | None:
        """What who reads a topic is told once it is another one of the same name."""
        core, topic, queue_id = self._core, place.topic, place.queue_id
        if core.store.incarnation(topic) <= place.incarnation:
            return None
        error = core.offsets.start_anew(self._group, topic, queue_id)
        return QueuePart(place.index, place.offset, 0, 0, error=error)

    def _lost(self) -> list[QueuePart]:
        """What those are told who have read messages that the log has lost: what is stored there now is new to them.

        They alone are sent back, and not their group: other members of it may have read on since.
        """
        core, parts = self._core, []
        for place, epoch in self._older:
            topic, queue_id = place.topic, place.queue_id
            kept = core.store.kept_to(topic, queue_id, epoch) if epoch else None
            if kept is None or place.offset <= kept:
                continue
            error = core.offsets.after_loss(self._group, topic, queue_id, kept)
            parts.append(QueuePart(place.index, place.offset, 0, 0, error=error))
        self._older = []
        return parts

    def _moved(self, place: _Place) -> QueuePart | None:
        """What a group that was sent elsewhere is told, once it has not gone there yet."""
        core, topic, queue_id = self._core, place.topic, place.queue_id
        if self._group is None or topic not in core.topics:
            return None
        target = core.offsets.heed_reset(self._group, topic, queue_id, place.offset)
        return None if target is None else QueuePart(place.index, place.offset, 0, 0, error=OffsetReset(target))

    def _read(self, place: _Place, scan: Scan) -> QueuePart:
        core, topic, queue_id, index, offset = self._core, place.topic, place.queue_id, place.index, place.offset
        try:
            if not core.topic(topic).perm & PERM_READ:
                raise PermissionDenied(f"topic {topic} may not be read on {core.name}")
            low, high = core.store.min_offset(topic, queue_id), core.store.max_offset(topic, queue_id)
            if offset == high:
                return QueuePart(index, high, low, high)
            limits = self._max_messages, self._max_bytes
            with read_filtered(
                core.store, topic, queue_id, offset, *limits, place.filter, check_crc=self._check_crc, scan=scan
            ) as lease:
                return QueuePart(index, lease.next_offset, low, high, lease.parts, lease.sizes, lease.queue_offsets)
        except QueueNotFound as error:
            exists = core.store.topic_configs.get(topic)
            if exists is not None and 0 <= queue_id < exists.read_queues:  # a queue that was never written
                if offset == 0:
                    return QueuePart(index, 0, 0, 0)
                return QueuePart(index, offset, 0, 0, error=OffsetOutOfRange(offset, 0, 0))
            return QueuePart(index, offset, 0, 0, error=error)
