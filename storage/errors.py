"""Every error of RayMQ, as one tree.

The tree is rooted in the lowest layer, so that an error raised by a store is the same class that a client's `except`
names: errors are not translated on the way. `raymq.actors.errors` and `raymq.client.errors` only add their own leaves.

    RayMQError
    +-- InvalidInput (ValueError)      the caller's fault; nothing was sent or stored
    |   +-- WrongType (TypeError)      an argument has another type
    +-- NotFoundError
    |   +-- TopicNotFound  QueueNotFound  GroupNotFound  MessageNotFound  MessageExpired
    +-- TopicExists
    +-- OffsetOutOfRange
    +-- StoreError
        +-- StoreLocked                another process has the directory open
        +-- StoreFollows               the store is a replica's: only its master takes messages
        +-- StateMismatch              events of the master do not fit the replica's state journal
        +-- StoreCorrupt               bytes on disk are not what was written
        +-- FormatTooNew               a newer RayMQ wrote the directory or the backup; nothing was changed there
        +-- StoreFailed                the disk failed; writes are refused until the store is opened again
        |   +-- WriteUnknown           the disk failed during this write, which may have happened
        +-- BackupFailed               a backup could not be made or read; earlier backups are unchanged
        +-- StoreFull                  the disk has no room, or its used share is above the limit
            +-- StoreBusy              no file descriptor or memory is left for a file

Errors cross processes, so each survives pickle with all its fields (`__reduce__` below; tests/unit/test_errors.py).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, TypeVar

_E = TypeVar("_E", bound="RayMQError")
#: Longer collections are shown in messages by type and length only.
_MAX_SHOWN = 100
#: A shorter time-out is reported as no time left to wait.
_LEAST_SHOWN_SECONDS = 0.001


def _rebuild(cls: type[_E], args: tuple[Any, ...], state: dict[str, Any]) -> _E:
    """Rebuild an error without calling its `__init__`, whose signature differs from `args`."""
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class RayMQError(Exception):
    """Base of all errors that RayMQ raises.

    Attributes:
        code: RocketMQ's response-code name such as "SYSTEM_BUSY", or None if no broker answered.
        retriable: whether the same call may succeed later without a change by the caller.
        remedy: what the caller can do about it, one sentence; empty if the message says everything.
        refused_by: for a send that was refused: the name of the broker that refused it; None if no broker was tried.
        kept: whether the producer's outbox has the messages and will send them: sending them again would duplicate
            them.
    """

    code: str | None = None
    retriable: bool = False
    remedy: str = ""
    refused_by: str | None = None
    kept: bool = False

    #: The response code that a broker sends when a command raises this error; a wire name of actors/wire/codes.py.
    wire_code: ClassVar[str] = "SYSTEM_ERROR"

    def __init__(self, message: str = "", *, code: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        if remedy is not None:
            self.remedy = remedy

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} ({self.remedy})" if self.remedy else message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def number_text(value: float, digits: int = 6) -> str:
    """Return a number as decimal text with at most `digits` significant digits and no exponent."""
    if not math.isfinite(value):
        return f"{value:g}"
    if abs(value) < 1e-9:
        return "0"
    text = f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def no_answer_within(seconds: float, what: str = "answer") -> str:
    """Return the error text for a peer that did not answer within so many seconds."""
    if seconds < _LEAST_SHOWN_SECONDS:
        return f"no {what}: no time was left to wait for one"
    return f"no {what} within {number_text(seconds, 3)} s"


def _shown(value: Any) -> str:
    """Return a value as text for a message, at most about 200 characters long.

    A collection of more than 100 items is shown by its type and length, because its size is set by others.
    """
    if isinstance(value, list | tuple | dict | set) and len(value) > _MAX_SHOWN:
        return f"{type(value).__name__} of {len(value)}"
    shown = repr(value)
    return shown if len(shown) <= 200 else shown[:200] + "..."


class InvalidInput(RayMQError, ValueError):
    """An argument breaks a rule; nothing was sent or stored.

    The argument `.field` broke the rule `.limit` with the value `.actual`.
    """

    wire_code = "INVALID_PARAMETER"

    def __init__(self, field: str, limit: object, actual: object, *, remedy: str | None = None) -> None:
        super().__init__(f"{field}: {limit}; got {_shown(actual)}", remedy=remedy)
        self.field = field
        self.limit = limit
        self.actual = actual


class WrongType(InvalidInput, TypeError):
    """An argument has another type than `.limit` names; nothing was sent or stored."""

    def __init__(self, field: str, expected: str, value: object, *, remedy: str | None = None) -> None:
        super().__init__(field, expected, value, remedy=remedy)
        self.args = (f"{field} must be {expected}, not {type(value).__name__}: {_shown(value)}",)


class NotFoundError(RayMQError):
    """The requested object does not exist; the place where it would be was read."""


class TopicNotFound(NotFoundError):
    """No broker has the topic."""

    wire_code = "TOPIC_NOT_EXIST"


class QueueNotFound(NotFoundError):
    """The broker has no such queue, or no message was ever written to it."""

    wire_code = "QUERY_NOT_FOUND"


class GroupNotFound(NotFoundError):
    """No broker has the consumer group."""

    wire_code = "SUBSCRIPTION_GROUP_NOT_EXIST"


class MessageNotFound(NotFoundError):
    """There is no message at that offset or with that id."""

    wire_code = "QUERY_NOT_FOUND"


class MessageExpired(NotFoundError):
    """Retention deleted the message: its offset lies below the commit log's minimum."""

    wire_code = "QUERY_NOT_FOUND"


class TopicExists(RayMQError):
    """The topic exists with other settings."""


class OffsetOutOfRange(RayMQError):
    """A queue offset is below the minimum or above the maximum (the next message's offset)."""

    wire_code = "PULL_OFFSET_MOVED"

    def __init__(self, offset: int, min_offset: int, max_offset: int) -> None:
        super().__init__(f"offset {offset} is outside {min_offset}..{max_offset}")
        self.offset = offset
        self.min_offset = min_offset
        self.max_offset = max_offset


class StoreError(RayMQError):
    """Base of the errors of a store directory and its disk."""


class StoreLocked(StoreError):
    """Another process has the directory open.

    `.pid` is its process id, or None if it is unknown.
    """

    def __init__(self, directory: object, pid: int | None) -> None:
        super().__init__(
            f"{directory} is in use by process {pid}" if pid else f"{directory} is in use by another process",
            remedy="stop that process or open another directory",
        )
        self.pid = pid


class StoreFollows(StoreError):
    """The store is a replica's: it takes data from its master only."""

    wire_code = "SERVICE_NOT_AVAILABLE"
    retriable = True
    remedy = "send to the master; if it has changed, the next route names the new one"


class StateMismatch(StoreError):
    """A replica cannot apply events or a copy of its master's state journal.

    They are malformed or do not fit the replica's journal. Nothing of them was applied.
    """

    remedy = "nothing: the replica connects again, and gets a copy if its state differs"


class StoreCorrupt(StoreError):
    """Bytes on disk are not what was written.

    `.file` and `.offset` (within the file) say where. `.queue_offset` is the damaged record's offset in its queue if a
    queue was read, else None.
    """

    queue_offset: int | None = None

    def __init__(self, file: str, offset: int, reason: str, *, remedy: str | None = None) -> None:
        super().__init__(f"{file} at byte {offset}: {reason}", remedy=remedy)
        self.file = file
        self.offset = offset
        self.reason = reason


class FormatTooNew(StoreError):
    """A newer RayMQ wrote a directory or a backup, and this version would misread it.

    Nothing was changed there.

    Attributes:
        what: the directory or the backup.
        found, known: its format, and the newest format that this RayMQ supports.
        written_by: the version of RayMQ that wrote it; empty if unknown.
    """

    def __init__(self, what: str, found: int, known: int, written_by: str = "") -> None:
        by = f" by RayMQ {written_by}" if written_by else ""
        newer = f"RayMQ {written_by} or later" if written_by else "the RayMQ that wrote it, or a later one"
        remedy = f"use {newer}; this RayMQ cannot read what was written since the upgrade"
        super().__init__(
            f"{what} was written{by} in format {found}; this RayMQ supports formats up to {known}", remedy=remedy
        )
        self.what = what
        self.found = found
        self.known = known
        self.written_by = written_by


class StoreFailed(StoreError):
    """A write or fsync failed, so the content of the disk is unknown.

    The store refuses writes until it is opened again.
    """

    wire_code = "SERVICE_NOT_AVAILABLE"
    remedy = "close the store, look at its disk (the kernel's log says more) and open it again"


class WriteUnknown(StoreFailed):
    """A write was interrupted or could not be synced to disk.

    After the next opening the written data may or may not be there.
    """

    wire_code = "SYSTEM_ERROR"


class BackupFailed(StoreError):
    """A backup could not be made or read; earlier backups and the broker are unchanged."""

    retriable = True


class StoreFull(StoreError):
    """The disk has no room, or is fuller than `disk_refuse_ratio`.

    Writes are refused until that changes.
    """

    wire_code = "SERVICE_NOT_AVAILABLE"
    retriable = True
    remedy = "free some of the disk or raise disk_refuse_ratio; the store then continues by itself"


class StoreBusy(StoreFull):
    """The process or the machine has no file descriptor or memory left; nothing was done."""

    remedy = "try again; raise the limit of open files (ulimit -n) or close other programs that use them"
