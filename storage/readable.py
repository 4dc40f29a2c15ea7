"""What can be read of an open store: messages by queue, place, key and time, and where its queues begin and end.

Thread rule: that of the store (`raymq.storage.store`), of which this is one half.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from raymq.storage.assembly import Parts
from raymq.storage.errors import QueueNotFound
from raymq.storage.log.confirm_point import ConfirmPoint
from raymq.storage.log.lease import Lease
from raymq.storage.log.past_damage import Damage, walk_past_damage
from raymq.storage.log.queue_repair import QueueRepair
from raymq.storage.log.reading import Reader, check_offset
from raymq.storage.log.shipping import LogBytes, log_bytes
from raymq.storage.log.veils import Veils
from raymq.storage.records.record import Record
from raymq.storage.steps import Steps, finish


class Readable:
    """The reading half of a `Store`, which has opened its parts.

    Attributes:
        confirmed: up to where the log is confirmed. All that reads ends there; where a method takes `written`, the
            broker's own duties may also see what was appended and is not confirmed, never a consumer.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._log = parts.log
        self._dispatcher = parts.dispatcher
        self.confirmed = ConfirmPoint(parts.log, durable=parts.config.flush == "sync")
        #: What a store with replicas knew to be confirmed when it was open last; 0: it never had any.
        self.confirmed_before = min(parts.checkpoint.confirm_offset, parts.log.max_offset)
        repair = QueueRepair(parts.log, parts.dispatcher, parts.deleted_topics)
        #: What hides a commit that is under way from readers.
        self.veils = Veils(parts.dispatcher, parts.deleted_topics)
        self._reader = Reader(parts.log, parts.dispatcher, repair, self.confirmed, self.veils)

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        max_bytes: int | None = None,
        tags_codes: Collection[int] | None = None,
        *,
        check_crc: bool = True,
        written: bool = False,
    ) -> Lease:
        """Records of a queue from `offset` on, at least one where there is one, even above `max_bytes`.

        With `tags_codes` only entries of these codes; a call looks at a bounded number of entries, so that it may
        return none although there are more: go on at `next_offset`. A damaged record ends what is returned before it.

        Args:
            check_crc: False for a caller that compares the bodies' checksums itself. What is in the log's newest file,
                and was found sound when it was appended or read, is then not looked at again.

        Raises:
            OffsetOutOfRange: below the minimum or beyond the maximum (at the maximum the lease is empty).
            QueueNotFound: nothing was ever written there.
            StoreCorrupt: the record at `offset` is damaged; those behind it can be read.
        """
        return self._reader.read(topic, queue_id, offset, max_messages, max_bytes, tags_codes, check_crc, written)

    def read_at(self, physical_offset: int) -> Record:
        """The record at a place of the log.

        Raises:
            MessageExpired: below the log's minimum. MessageNotFound: not confirmed, or no record begins there.
            StoreCorrupt: it is damaged.
        """
        return self._reader.record(physical_offset)

    def raw_at(self, physical_offset: int) -> bytes:
        """The bytes of the record at a place of the log; raises as `read_at`."""
        return bytes(self._log.view(physical_offset, self._reader.record(physical_offset).size))

    def stored(self, physical_offset: int, size: int) -> memoryview:
        """The bytes of a record that was just stored there: a view, which keeps the log's mapping."""
        return self._log.view(physical_offset, size)

    def raw_many(self, physical_offsets: Sequence[int], sizes: Sequence[int]) -> bytes:
        """The bytes at several places of the log in one piece, unchecked; each lies within minimum..maximum."""
        return b"".join(map(self._log.view, physical_offsets, sizes))

    def log_bytes(self, begin: int, end: int, *, whole: bool = False) -> LogBytes:
        """The log's bytes from `begin` on, written or confirmed, up to `end` or to the end of its file.

        Views of the mapping, valid until they are released, also where retention removes the file meanwhile.

        Args:
            whole: end where a record does, if `begin` is where one begins; at least one record comes.

        Raises:
            MessageExpired: `begin` is below the log's minimum. InvalidInput: there is nothing of begin..end, or it
                reaches beyond the log's end.
        """
        return log_bytes(self._log, begin, end, whole=whole)

    def walk(self, physical_offset: int) -> Iterator[Record]:
        """All written records in log order from a record's place (or the minimum) on; raises as `read_at`."""
        return self._log.walk(physical_offset)

    def walk_past_damage(self, physical_offset: int) -> Iterator[Record | Damage]:
        """The same, but where a record is damaged it says so and goes on behind it."""
        return walk_past_damage(self._log, physical_offset)

    def query(
        self, topic: str, key: str, begin_ms: int, end_ms: int, max_messages: int, *, written: bool = False
    ) -> list[Record]:
        """Messages of the topic with that unique key or key, stored within begin..end, newest first."""
        return finish(self.search(topic, key, begin_ms, end_ms, max_messages, written=written))

    def search(
        self,
        topic: str,
        key: str,
        begin_ms: int,
        end_ms: int,
        max_messages: int,
        max_bytes: int | None = None,
        *,
        written: bool = False,
    ) -> Steps[list[Record]]:
        """`query` in steps, none of which takes longer than some milliseconds: see `raymq.storage.steps`.

        Between two of them the store may be used, and written to: what is stored from now on is not found, and what
        expires may be.

        Args:
            max_bytes: it ends before the record with which all would be longer than that, unless it is the first one.
        """
        return self._reader.search(topic, key, begin_ms, end_ms, max_messages, max_bytes, written=written)

    def entries(
        self, topic: str, queue_id: int, offset: int, max_entries: int, *, written: bool = False
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Copies of a queue's entries: physical offsets, sizes, tags codes. Raises as `read`."""
        queue = self._dispatcher.get(topic, queue_id)
        end = self._reader.end_of(queue, written=written)
        check_offset(queue, offset, end)
        found = queue.entries(offset, min(max_entries, end - offset))
        return (
            found["physical_offset"].astype(np.int64),
            found["size"].astype(np.int32),
            found["tags_code"].astype(np.int64),
        )

    def appended_together(self, topic: str, queue_id: int, offset: int, most: int) -> int:
        """How many of the queue's messages from `offset` on, at most `most`, came with one append.

        A loss of power may have taken the end of an append, and others' messages may stand there: these lie elsewhere
        in the log, or have a later store time.

        Raises:
            OffsetOutOfRange, QueueNotFound: as `read`.
        """
        return self._reader.appended_together(topic, queue_id, offset, most)

    def topics(self) -> list[str]:
        """The topics that have a queue."""
        return self._dispatcher.queues.topics()

    def queues(self, topic: str) -> list[int]:
        """The topic's queues that were ever written; none if there is no such topic."""
        return self._dispatcher.queues.of(topic)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The oldest message's offset, the maximum if all are gone. QueueNotFound as `read`."""
        return self._dispatcher.get(topic, queue_id).min_offset

    def max_offset(self, topic: str, queue_id: int, *, written: bool = False) -> int:
        """The offset behind the last message that can be read. QueueNotFound as `read`."""
        queue = self._dispatcher.get(topic, queue_id)
        return queue.max_offset if written else self.confirmed.end_of(queue)

    def expired_ends(self, log_min: int = 0) -> Steps[dict[str, dict[int, int]]]:
        """How far each queue is of which the log has no message any more, by topic and queue id; in steps.

        Args:
            log_min: of a log that has less, which begins there.
        """
        return self._dispatcher.expired_ends(max(log_min, self._log.min_offset))

    def offset_at_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, boundary: Literal["lower", "upper"] = "lower"
    ) -> int:
        """The first message stored at that time or later, the maximum if there is none.

        With `boundary="upper"` the last message stored at that time or earlier, the minimum if there is none.
        QueueNotFound as `read`.
        """
        return finish(self.search_time(topic, queue_id, timestamp_ms, boundary=boundary))

    def search_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, boundary: Literal["lower", "upper"] = "lower"
    ) -> Steps[int]:
        """`offset_at_time` in steps, one of them unless many records in a row are damaged; see `raymq.storage.steps`.

        Between two of them the store may be used; QueueNotFound also if the topic was deleted meanwhile.
        """
        return self._reader.search_time(topic, queue_id, timestamp_ms, boundary)

    def kept_at_open(self, topic: str, queue_id: int) -> int | None:
        """Where a queue ended when the store was opened, if that may have been too early; None: it was not.

        It tells nothing of a reader that does not say its epoch, but that one who is beyond the queue's end was there.
        """
        return self._kept(topic, queue_id, self._parts.epochs.cut_at_open)

    def cut_before(self, log_end: int) -> None:
        """The log was cut there before the store was opened: it is told as if the opening had done so."""
        cut = self._parts.epochs.cut_at_open
        self._parts.epochs.cut_at_open = log_end if cut is None else min(cut, log_end)

    def kept_to(self, topic: str, queue_id: int, epoch: int) -> int | None:
        """Up to which offset a queue is the one that was read under `epoch`; None: all of it.

        Who is beyond has read what the log has lost, and goes on there: other messages have these offsets now.
        """
        return self._kept(topic, queue_id, self._parts.epochs.cut_since(epoch))

    def _kept(self, topic: str, queue_id: int, log_end: int | None) -> int | None:
        """Up to which offset a queue is of the log up to `log_end`; None: all of it, as without one."""
        if log_end is None:
            return None
        try:
            queue = self._dispatcher.get(topic, queue_id)
        except QueueNotFound:
            return 0
        return max(queue.reach(log_end), queue.min_offset)

    @property
    def is_healthy(self) -> bool:
        """Whether the disk has not failed since the store was opened."""
        return self._parts.health.good

    @property
    def min_physical_offset(self) -> int:
        """Where the log begins."""
        return self._log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """Where the log ends, be that confirmed or not."""
        return self._log.max_offset
