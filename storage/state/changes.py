"""One change of a state file, as a master tells it to its replicas.

A change has a number, and the log's end at that moment: it may speak of messages before that place, never of later
ones. What has changed is one of these, in msgpack; paths are those below the store directory:

    ["c", path, empty]      the file is there; `empty`: and nothing is in it
    ["a", path, end, bytes] bytes were appended, at `end`
    ["w", path, at, bytes]  bytes were written over others, or to the end
    ["t", path, size]       the file was cut, or grown with zeros
    ["r", source, target]   a file or folder has another name, in place of what had it
    ["u", path]             the file is gone
    ["m", path]             a folder is there
    ["d", path]             the empty folder is gone

All changes up to one, and the log up to its place, are what the death of the master's process at that moment would
have left: a broker starts from it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgpack

from raymq.storage.errors import StateMismatch
from raymq.storage.state.state_files import is_state

#: So much is in one change at most, in bytes; larger writes are several.
MOST_WRITTEN: Final = 1 << 20
#: No file of state is larger.
MOST_FILE: Final = 1 << 40


#: How the payload of a renaming begins: a list of three, of which the first is "r".
_RENAMED: Final[bytes] = msgpack.packb(["r", "", ""])[:3]


@dataclass(frozen=True, slots=True)
class StateChange:
    """One change of state.

    Attributes:
        sequence: its number, from 1 on.
        log_offset: the log's end when it was made: it may speak of messages before that, never of later ones.
        payload: what has changed; at least 1 B.
    """

    sequence: int
    log_offset: int
    payload: bytes


class Operation(enum.Enum):
    """What has happened to a file or folder."""

    CREATED = "c"
    APPENDED = "a"
    WRITTEN = "w"
    TRUNCATED = "t"
    RENAMED = "r"
    UNLINKED = "u"
    FOLDER_MADE = "m"
    FOLDER_REMOVED = "d"


class FileChange(NamedTuple):
    """What is in a payload; what an operation does not have is empty."""

    operation: Operation
    path: str
    target: str = ""
    at: int = 0
    content: bytes = b""
    empty: bool = False

    def encode(self) -> bytes:
        """The payload."""
        operation = self.operation
        if operation is Operation.APPENDED or operation is Operation.WRITTEN:
            told: tuple[Any, ...] = (operation.value, self.path, self.at, self.content)
        elif operation is Operation.CREATED:
            told = (operation.value, self.path, self.empty)
        elif operation is Operation.TRUNCATED:
            told = (operation.value, self.path, self.at)
        elif operation is Operation.RENAMED:
            told = (operation.value, self.path, self.target)
        else:
            told = (operation.value, self.path)
        packed: bytes = msgpack.packb(told, unicode_errors="surrogateescape")
        return packed


def takes_a_place(payload: bytes) -> bool:
    """Whether a file takes another one's place by this change: who makes it waits for the disk."""
    return payload[:3] == _RENAMED


def read_change(payload: bytes) -> FileChange:
    """What is in a payload; StateMismatch: it is none, or speaks of what is no state."""
    try:
        kind, path, *rest = msgpack.unpackb(payload, unicode_errors="surrogateescape", use_list=True)
        change = _read(Operation(kind), path, rest)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise StateMismatch(f"a change of state of another form: {error}") from None
    if type(change.path) is not str or not is_state(change.path):
        raise StateMismatch(f"a change of what is no state: {change.path!r:.200}")
    if change.operation is Operation.RENAMED and not (type(change.target) is str and is_state(change.target)):
        raise StateMismatch(f"a change of what is no state: {change.target!r:.200}")
    return change


def _read(operation: Operation, path: str, rest: list[Any]) -> FileChange:
    if operation in (Operation.APPENDED, Operation.WRITTEN):
        at, content = rest
        if type(content) is not bytes or not content or not _is_size(at) or not _is_size(at + len(content)):
            raise ValueError(f"{len(rest)} values of a write")
        return FileChange(operation, path, at=at, content=content)
    if operation is Operation.CREATED:
        (empty,) = rest
        return FileChange(operation, path, empty=bool(empty))
    if operation is Operation.TRUNCATED:
        (size,) = rest
        if not _is_size(size):
            raise ValueError(f"a size of {size!r:.40}")
        return FileChange(operation, path, at=size)
    if operation is Operation.RENAMED:
        (target,) = rest
        return FileChange(operation, path, target=target)
    if rest:
        raise ValueError(f"{len(rest)} values too many")
    return FileChange(operation, path)


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST_FILE
