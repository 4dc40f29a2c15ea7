"""Make copies of stored messages, so that one that cannot be copied stops no others.

Delay levels, retries, dead letters, timers, redriving, staged writes, pop and transactions copy stored messages. Each
of these services serves all messages, and a stored byte must not stop it. There are two kinds of failures:

- A failure of the message: a forged or damaged record, one that is too large with the added properties, a deleted
  topic, or an unexpected exception. It is logged and counted, and the message is quarantined with its place and the
  reason.
- A failure of the store: a disk that is full or fails. It is raised; nothing is skipped, and the service tries again.

Copies are made and appended together. Only if that fails, halves are tried, until the failing message is found.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, Self, TypeVar

from raymq.actors.broker.core.copies.record_copy import RecordAppender, join
from raymq.actors.errors import OffsetOutOfRange, QueueNotFound, RayMQError, StoreCorrupt, StoreError
from raymq.storage.records import message_id
from raymq.storage.records.record import Record
from raymq.storage.store import Store
from raymq.storage.tables.quarantined_messages import QuarantinedMessages, QuarantineEntry

#: The names of the services in counters and log lines.
LEVEL: Final = "delayLevel"
RETRY: Final = "retry"
DEAD_LETTER: Final = "deadLetter"
TIMER: Final = "timer"
REDRIVE: Final = "redrive"
POP: Final = "pop"
STAGED: Final = "stagedWrite"
TRANSACTION: Final = "transaction"
PURPOSES: Final = (LEVEL, RETRY, DEAD_LETTER, TIMER, REDRIVE, POP, STAGED, TRANSACTION)

#: How many of the messages that are quarantined together are logged one by one.
_MAX_LOGGED: Final = 10
#: A reason is cut to this length, as it may quote stored data.
_MAX_REASON_CHARACTERS: Final = 300
_log = logging.getLogger(__name__)

_R = TypeVar("_R")


class Items(Protocol):
    """A sequence that can be sliced: a list, a range, an array."""

    def __len__(self) -> int: ...
    def __getitem__(self, which: slice, /) -> Self: ...


_I = TypeVar("_I", bound=Items)


class CopyPurpose(NamedTuple):
    """The service that makes a copy, and for whom (a group, a level, a transaction)."""

    name: str
    owner: str = ""


class MessageLocation(NamedTuple):
    """The location of a stored message in a queue and in the log.

    `message_id` is the message's id. Unknown values are "" and -1.
    """

    topic: str = ""
    queue_id: int = -1
    offset: int = -1
    physical_offset: int = -1
    message_id: str = ""


class PreparedCopy(NamedTuple):
    """A copy that is ready to be appended: its original, its bytes and its queue."""

    original: Record
    record: bytes
    topic_queue: tuple[str, int]


class CopyRefusal(NamedTuple):
    """Why messages cannot be copied."""

    reason: str


class CopyRejected(Exception):
    """Raised if some of the items cannot be copied; `others` may still be."""

    def __init__(self, reason: str, culprits: object, others: object) -> None:
        super().__init__(reason)
        self.culprits = culprits
        self.others = others


def rejection_reason(error: Exception) -> str:
    """Return why a message cannot be copied, given the error; reraise errors of the store."""
    of_store = isinstance(error, StoreError) and not isinstance(error, StoreCorrupt)
    if of_store or isinstance(error, OSError | MemoryError) or (isinstance(error, RayMQError) and error.retriable):
        raise error
    return str(error) if isinstance(error, RayMQError) else f"{type(error).__name__}: {error}"


class Republisher:
    """Makes copies on one broker, and quarantines messages that cannot be copied.

    `clock` is wall time. Used on the broker's event loop.
    """

    def __init__(
        self, store: Store, append: RecordAppender, quarantined: QuarantinedMessages, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._append = append
        self._quarantined = quarantined
        self._clock = clock
        host, _, port = store.config.store_host.rpartition(":")
        self._host = host, int(port)

    def read(
        self,
        purpose: CopyPurpose,
        topic_queue: tuple[str, int],
        offset: int,
        count: int,
        max_bytes: int,
        *,
        written: bool = False,
    ) -> tuple[list[Record], int]:
        """Return records of a queue from `offset` on, and the offset to continue at.

        There are no records if the first one is damaged. With `written` records are returned before they are confirmed.

        Raises:
            OffsetOutOfRange, QueueNotFound: there is nothing to read. The store's errors.
        """
        try:
            with self._store.read(*topic_queue, offset, count, max_bytes, written=written) as lease:
                return lease.messages(), lease.next_offset
        except (OffsetOutOfRange, QueueNotFound):
            raise
        except Exception as error:  # noqa: BLE001 - as in `make`
            reason = rejection_reason(error)
            if count > 1 and not isinstance(error, StoreCorrupt):  # the error does not name the message
                return self.read(purpose, topic_queue, offset, 1, max_bytes, written=written)
            self.quarantine(purpose, [self.place(topic_queue, offset)], reason)
            return [], offset + 1

    def make(
        self, purpose: CopyPurpose, records: Iterable[Record], copy: Callable[[Record], tuple[bytes, tuple[str, int]]]
    ) -> list[PreparedCopy]:
        """Return the copies of records; quarantine the records that cannot be copied.

        `copy` returns the bytes and the queue of the copy of a record.
        """
        copies: list[PreparedCopy] = []
        refused: dict[str, list[MessageLocation]] = {}
        for record in records:
            try:
                copies.append(PreparedCopy(record, *copy(record)))
            except Exception as error:  # noqa: BLE001 - an error of a stored message concerns that message only
                refused.setdefault(rejection_reason(error), []).append(location_of(record))
        for reason, places in refused.items():
            self.quarantine(purpose, places, reason)
        return copies

    def store(self, purpose: CopyPurpose, copies: Sequence[PreparedCopy]) -> Iterator[Sequence[PreparedCopy]]:
        """Append copies, and yield those of each append.

        Quarantine the messages of which none can be appended.

        There is one append, unless it fails for some of the copies.
        """

        def append(part: Sequence[PreparedCopy]) -> None:
            self._append(*join([copy.record for copy in part]), *{copy.topic_queue for copy in part}, again=True)

        for part, outcome in self.copy_each(copies, append):
            if isinstance(outcome, CopyRefusal):
                self.quarantine(purpose, [location_of(copy.original) for copy in part], outcome.reason)
            else:
                yield part

    def copy_each(self, items: _I, copy: Callable[[_I], _R]) -> Iterator[tuple[_I, _R | CopyRefusal]]:
        """Copy items together; if a message makes that fail, copy the others without it.

        Yield the parts in their order, each with the result of `copy`, or with the reason why its items cannot be
        copied.

        Args:
            copy: appends the copies of all items that it is given, or of none. It may raise `CopyRejected`.
        """
        parts = [items] if len(items) else []
        while parts:
            part = parts.pop()
            try:
                result = copy(part)
            except CopyRejected as error:
                yield error.culprits, CopyRefusal(str(error))  # type: ignore[misc]
                if len(error.others):  # type: ignore[arg-type]
                    parts.append(error.others)  # type: ignore[arg-type]
                continue
            except Exception as error:  # noqa: BLE001 - as in `make`
                reason = rejection_reason(error)
                self._store.check_ready()  # after an append that failed half way the store refuses more
                if len(part) == 1:
                    yield part, CopyRefusal(reason)
                else:
                    middle = len(part) // 2
                    parts += [part[middle:], part[:middle]]
                continue
            yield part, result

    def quarantine(self, purpose: CopyPurpose, places: Iterable[MessageLocation], reason: str) -> None:
        """Quarantine messages; each is logged and counted only once.

        Raise StoreFull or StoreFailed if it could not be stored; then it is not done.
        """
        now_ms, reason = int(self._clock() * 1000), reason[:_MAX_REASON_CHARACTERS]
        new = self._quarantined.put(
            [
                QuarantineEntry(
                    purpose.name,
                    purpose.owner,
                    place.topic,
                    place.queue_id,
                    place.offset,
                    place.physical_offset,
                    place.message_id,
                    reason,
                    now_ms,
                )
                for place in places
            ]
        )
        owner = f" of {purpose.owner}" if purpose.owner else ""
        for entry in new[:_MAX_LOGGED]:
            _log.error("set aside by %s%s: %s", purpose.name, owner, entry)
        if len(new) > _MAX_LOGGED:
            _log.error("set aside by %s%s: %d more for the same reason", purpose.name, owner, len(new) - _MAX_LOGGED)

    def place(self, topic_queue: tuple[str, int], offset: int) -> MessageLocation:
        """Return the location of a message of a queue, which need not be readable."""
        try:
            [physical], _, _ = self._store.entries(*topic_queue, offset, 1)
        except Exception:  # noqa: BLE001 - the entry itself may be damaged
            return MessageLocation(*topic_queue, offset)
        return MessageLocation(*topic_queue, offset, int(physical), self.message_id(int(physical)))

    def message_id(self, physical_offset: int) -> str:
        """Return the id of the message at a physical offset; "" if that is negative."""
        return message_id.encode(*self._host, physical_offset) if physical_offset >= 0 else ""


def location_of(record: Record) -> MessageLocation:
    """Return a record's location."""
    try:
        record_id = record.message_id
    except Exception:  # noqa: BLE001 - the record's host may be invalid
        record_id = ""
    return MessageLocation(record.topic, record.queue_id, record.queue_offset, record.physical_offset, record_id)
