"""Copies of stored messages: made for all, or not made for one for a reason of its own, which stops nobody else.

Delay levels, retries, dead letters, timers, redriving, staged writes and pop make copies of what is stored. Each of
these duties serves all messages, and a stored byte must not end it. What fails does so

- for a reason of the message: a forged or damaged record, one too large with what is added, a topic that is gone, an
  exception that nobody expected. It is told in the log, counted, and set aside with its place and the reason.
- for a reason of the store: a disk that is full or fails. That is raised; nothing is skipped, and the duty comes again.

Ordinary copies are made and appended together; only where that fails halves are tried, down to the culprit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol, Self, TypeVar

from raymq.actors.broker.core.copies.rewriting import Append, join
from raymq.actors.errors import OffsetOutOfRange, QueueNotFound, RayMQError, StoreCorrupt, StoreError
from raymq.storage.records import message_id
from raymq.storage.records.record import Record
from raymq.storage.store import AppendResult, Store
from raymq.storage.tables.set_aside import Note, SetAsideFile

#: The duties, as counters and notes call them.
LEVEL: Final = "delayLevel"
RETRY: Final = "retry"
DEAD_LETTER: Final = "deadLetter"
TIMER: Final = "timer"
REDRIVE: Final = "redrive"
POP: Final = "pop"
STAGED: Final = "stagedWrite"
DUTIES: Final = (LEVEL, RETRY, DEAD_LETTER, TIMER, REDRIVE, POP, STAGED)

#: Of the messages that are set aside together so many are told one by one.
_TOLD: Final = 10
#: A reason may quote what is stored.
_MAX_REASON_CHARACTERS: Final = 300
_log = logging.getLogger(__name__)

_R = TypeVar("_R")


class Items(Protocol):
    """What can be cut in two: a list, a range, an array."""

    def __len__(self) -> int: ...
    def __getitem__(self, which: slice, /) -> Self: ...


_I = TypeVar("_I", bound=Items)


class Duty(NamedTuple):
    """Which duty, and for whom (a group, a level, a transaction)."""

    name: str
    owner: str = ""


class Place(NamedTuple):
    """Which stored message: its place in a queue ("" and -1: not known), in the log (-1: not known), its id."""

    topic: str = ""
    queue_id: int = -1
    offset: int = -1
    physical_offset: int = -1
    message_id: str = ""


class Made(NamedTuple):
    """A copy, ready to be appended: of what, its bytes, and its queue."""

    original: Record
    record: bytes
    topic_queue: tuple[str, int]


class Culprits(Exception):
    """Some of the items of a copy cannot be copied, the others may be."""

    def __init__(self, reason: str, culprits: object, others: object) -> None:
        super().__init__(reason)
        self.culprits = culprits
        self.others = others


def reason_of(error: Exception) -> str:
    """Why a message cannot be copied, of what was raised by its copying; raises it again if it is the store's fault."""
    of_store = isinstance(error, StoreError) and not isinstance(error, StoreCorrupt)
    if of_store or isinstance(error, OSError | MemoryError) or (isinstance(error, RayMQError) and error.retriable):
        raise error
    return str(error) if isinstance(error, RayMQError) else f"{type(error).__name__}: {error}"


class Copying:
    """Makes copies on one broker and sets aside what has none. `clock` is wall time. Used on the broker's loop."""

    def __init__(self, store: Store, append: Append, aside: SetAsideFile, clock: Callable[[], float]) -> None:
        self._store = store
        self._append = append
        self._aside = aside
        self._clock = clock
        host, _, port = store.config.store_host.rpartition(":")
        self._host = host, int(port)

    def read(
        self, duty: Duty, topic_queue: tuple[str, int], offset: int, count: int, max_bytes: int
    ) -> tuple[list[Record], int]:
        """Records of a queue from `offset` on, none if the first one is damaged, and where to go on.

        Raises:
            OffsetOutOfRange, QueueNotFound: there is nothing to read. The store's errors.
        """
        try:
            with self._store.read(*topic_queue, offset, count, max_bytes) as lease:
                return lease.messages(), lease.next_offset
        except (OffsetOutOfRange, QueueNotFound):
            raise
        except Exception as error:  # noqa: BLE001 - as in `make`
            reason = reason_of(error)
            if count > 1 and not isinstance(error, StoreCorrupt):  # which one it is, nobody says
                return self.read(duty, topic_queue, offset, 1, max_bytes)
            self.refuse(duty, [self.place(topic_queue, offset)], reason)
            return [], offset + 1

    def make(
        self, duty: Duty, records: Iterable[Record], copy: Callable[[Record], tuple[bytes, tuple[str, int]]]
    ) -> list[Made]:
        """The copies of records, each as `copy` says: its bytes and its queue. Those that have none are set aside."""
        made: list[Made] = []
        refused: dict[str, list[Place]] = {}
        for record in records:
            try:
                made.append(Made(record, *copy(record)))
            except Exception as error:  # noqa: BLE001 - whatever a stored byte causes is that message's outcome
                refused.setdefault(reason_of(error), []).append(place_of(record))
        for reason, places in refused.items():
            self.refuse(duty, places, reason)
        return made

    def store(
        self,
        duty: Duty,
        made: Sequence[Made],
        stored: Callable[[Sequence[Made], AppendResult], None] = lambda _, __: None,
    ) -> None:
        """Append copies; `stored` is told of those of each append, which is one, unless it fails for some of them."""
        self.by_halves(
            made,
            lambda part: self._append(*join([m.record for m in part]), *{m.topic_queue for m in part}, again=True),
            stored,
            lambda part, reason: self.refuse(duty, [place_of(m.original) for m in part], reason),
        )

    def by_halves(
        self,
        items: _I,
        copy: Callable[[_I], _R],
        done: Callable[[_I, _R], None],
        refused: Callable[[_I, str], None],
    ) -> None:
        """Copy items together; where that fails for a reason of a message, the others without it, in their order.

        Args:
            copy: of the items it is given it appends all copies or none. It may raise `Culprits`.
            done: told what was copied, and what `copy` returned. Its errors are raised.
            refused: told what cannot be copied, and why.
        """
        parts = [items] if len(items) else []
        while parts:
            part = parts.pop()
            try:
                result = copy(part)
            except Culprits as error:
                refused(error.culprits, str(error))  # type: ignore[arg-type]
                if len(error.others):  # type: ignore[arg-type]
                    parts.append(error.others)  # type: ignore[arg-type]
                continue
            except Exception as error:  # noqa: BLE001 - as in `make`
                reason = reason_of(error)
                self._store.check_ready()  # an append that broke half way has made the store refuse more
                if len(part) == 1:
                    refused(part, reason)
                else:
                    middle = len(part) // 2
                    parts += [part[middle:], part[:middle]]
                continue
            done(part, result)

    def refuse(self, duty: Duty, places: Iterable[Place], reason: str) -> None:
        """Set messages aside: told once, counted once.

        StoreFull, StoreFailed: it could not be written down, so it is not done.
        """
        now_ms, reason = int(self._clock() * 1000), reason[:_MAX_REASON_CHARACTERS]
        new = self._aside.put(
            [
                Note(
                    duty.name,
                    duty.owner,
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
        owner = f" of {duty.owner}" if duty.owner else ""
        for note in new[:_TOLD]:
            _log.error("set aside by %s%s: %s", duty.name, owner, note)
        if len(new) > _TOLD:
            _log.error("set aside by %s%s: %d more for that reason", duty.name, owner, len(new) - _TOLD)

    def place(self, topic_queue: tuple[str, int], offset: int) -> Place:
        """The place of a queue's message, which may not be read."""
        try:
            [physical], _, _ = self._store.entries(*topic_queue, offset, 1)
        except Exception:  # noqa: BLE001 - the entry may be what is damaged
            return Place(*topic_queue, offset)
        return Place(*topic_queue, offset, int(physical), self.message_id(int(physical)))

    def message_id(self, physical_offset: int) -> str:
        """The id of what lies there."""
        return message_id.encode(*self._host, physical_offset) if physical_offset >= 0 else ""


def place_of(record: Record) -> Place:
    """A record's place."""
    try:
        told = record.message_id
    except Exception:  # noqa: BLE001 - the host that a record names may be no host
        told = ""
    return Place(record.topic, record.queue_id, record.queue_offset, record.physical_offset, told)
