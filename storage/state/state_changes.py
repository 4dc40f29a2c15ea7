"""One change of a state file, as a master sends it to its replicas.

A change has a number, and the log's end at that moment: it may refer to messages before that offset, never to later
ones. The payload is one of these lists, in msgpack; paths are relative to the store directory:

    ["c", path, empty]      the file exists; `empty`: and has no content
    ["a", path, end, bytes] bytes were appended at `end`
    ["w", path, at, bytes]  bytes were written over others, or to the end
    ["t", path, size]       the file was truncated, or extended with zeros
    ["r", source, target]   a file or folder was renamed and replaced the target
    ["u", path]             the file was removed
    ["m", path]             the folder was created
    ["d", path]             the empty folder was removed

All changes up to one, together with the log up to its offset, are the same state that a crash of the master's process
at that moment would have left: a broker can start from it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgpack

from raymq.storage.errors import StateMismatch
from raymq.storage.state.state_files import is_backup_state, is_state

#: The most bytes in one change; larger writes become several changes.
MAX_WRITE_BYTES: Final = 1 << 20
#: The maximum size of a state file in bytes.
MAX_FILE_BYTES: Final = 1 << 40


#: The first bytes of a rename's payload: a list of three whose first item is "r".
_RENAMED: Final[bytes] = msgpack.packb(["r", "", ""])[:3]


@dataclass(frozen=True, slots=True)
class StateChange:
    """One change of state.

    Attributes:
        sequence: its number, from 1 on.
        log_offset: the log's end when it was made: it may refer to messages before that offset, never to later ones.
        payload: the encoded change; at least 1 B.
    """

    sequence: int
    log_offset: int
    payload: bytes


class FileOperation(enum.Enum):
    """The kind of a change of a file or folder."""

    CREATED = "c"
    APPENDED = "a"
    WRITTEN = "w"
    TRUNCATED = "t"
    RENAMED = "r"
    UNLINKED = "u"
    FOLDER_MADE = "m"
    FOLDER_REMOVED = "d"


class FileChange(NamedTuple):
    """The decoded payload of a change; fields that an operation does not have are empty."""

    operation: FileOperation
    path: str
    target: str = ""
    at: int = 0
    content: bytes = b""
    empty: bool = False

    def encode(self) -> bytes:
        """Return the payload."""
        operation = self.operation
        if operation is FileOperation.APPENDED or operation is FileOperation.WRITTEN:
            fields: tuple[Any, ...] = (operation.value, self.path, self.at, self.content)
        elif operation is FileOperation.CREATED:
            fields = (operation.value, self.path, self.empty)
        elif operation is FileOperation.TRUNCATED:
            fields = (operation.value, self.path, self.at)
        elif operation is FileOperation.RENAMED:
            fields = (operation.value, self.path, self.target)
        else:
            fields = (operation.value, self.path)
        packed: bytes = msgpack.packb(fields, unicode_errors="surrogateescape")
        return packed


def is_rename(payload: bytes) -> bool:
    """Return True if the change renames a file or folder.

    A replica that applies a rename may wait for the disk.
    """
    return payload[:3] == _RENAMED


def decode_change(payload: bytes) -> FileChange:
    """Decode a payload.

    Raise StateMismatch if it is malformed or its path is no state file.
    """
    try:
        kind, path, *rest = msgpack.unpackb(payload, unicode_errors="surrogateescape", use_list=True)
        change = _read(FileOperation(kind), path, rest)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise StateMismatch(f"a malformed change of state: {error}") from None
    if type(change.path) is not str or not is_state(change.path):
        raise not_state(change.path)
    if change.operation is FileOperation.RENAMED and not (type(change.target) is str and is_state(change.target)):
        raise not_state(change.target)
    return change


def not_state(path: object) -> StateMismatch:
    """Return the error for a path that a master must not send."""
    if isinstance(path, str) and is_backup_state(path):
        remedy = "stop all brokers of the group, install the same RayMQ on their hosts, and start them"
        return StateMismatch(f"the master is of an older RayMQ, whose state has another format ({path}): {remedy}")
    return StateMismatch(f"a path that is not state: {path!r:.200}")


def _read(operation: FileOperation, path: str, rest: list[Any]) -> FileChange:
    if operation in (FileOperation.APPENDED, FileOperation.WRITTEN):
        at, content = rest
        if type(content) is not bytes or not content or not _is_size(at) or not _is_size(at + len(content)):
            raise ValueError(f"{len(rest)} values of a write")
        return FileChange(operation, path, at=at, content=content)
    if operation is FileOperation.CREATED:
        (empty,) = rest
        return FileChange(operation, path, empty=bool(empty))
    if operation is FileOperation.TRUNCATED:
        (size,) = rest
        if not _is_size(size):
            raise ValueError(f"a size of {size!r:.40}")
        return FileChange(operation, path, at=size)
    if operation is FileOperation.RENAMED:
        (target,) = rest
        return FileChange(operation, path, target=target)
    if rest:
        raise ValueError(f"{len(rest)} values too many")
    return FileChange(operation, path)


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_FILE_BYTES
