"""All state of a directory at one moment, read while it continues to change.

The names and sizes of the files are noted at that moment; their bytes are read later. By then some bytes may have
changed: but each changed byte is in a later change, which a replica applies after the snapshot. Only the content of a
path at that moment must not get lost: so a file is opened before its path is removed or names another file.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgpack

from raymq.storage.errors import StateMismatch
from raymq.storage.files import fileutil
from raymq.storage.state.state_changes import MAX_FILE_BYTES, not_state
from raymq.storage.state.state_files import CONFIG, RAYMQ_FOLDER, is_state, is_stored_state

#: How many bytes of files are in one part; the part itself is somewhat larger.
_PART_BYTES: Final = 900 << 10
#: About how many bytes an entry of a part takes besides its content and its path.
_ENTRY_BYTES: Final = 32
#: Files up to this size are read when they have to be kept; larger ones stay open.
_READ_BYTES: Final = 64 << 10
#: A file that the sender adds to the state (`expired_queue_offsets`); an older replica may have stored it.
QUEUE_ENDS_PATH: Final = f"{RAYMQ_FOLDER}/queue_ends.json"
#: The offset of an entry that is a folder.
_FOLDER: Final = -1


class StateSnapshot:
    """A snapshot that `StateRecorder.snapshot` made; `parts` belongs to any one thread.

    Attributes:
        sequence: the snapshot contains all changes up to this number.
    """

    def __init__(
        self,
        directory: Path,
        sequence: int,
        lock: threading.RLock,
        on_close: Callable[[StateSnapshot], None],
        is_included: Callable[[str], bool] = is_stored_state,
    ) -> None:
        """Note the existing files for which `is_included` is true.

        The caller holds `lock`, as each thread that changes files.
        """
        self.sequence = sequence
        self._directory = directory
        self._lock = lock
        self._on_close: Callable[[StateSnapshot], None] | None = on_close
        self._is_included = is_included
        self._folders: list[str] = []
        #: Files that were not read yet: sizes by path, and content or descriptors of files whose path was lost.
        self._sizes: dict[str, int] = {}
        self._kept: dict[str, bytes | int] = {}
        #: Former content of files that were overwritten without a recorded change; and the file that is being read.
        self._former: dict[str, bytes] = {}
        self._being_read: tuple[str, int, int] | None = None
        #: The path and size of each file, by inode number.
        self.inodes: dict[int, tuple[str, int]] = {}
        for top in (CONFIG, RAYMQ_FOLDER):
            self._note(top)
        self._total = sum(self._sizes.values())

    @property
    def total_bytes(self) -> int:
        """Return the size of all files in bytes."""
        return self._total

    def _note(self, folder: str) -> None:
        for entry in fileutil.entries_of(self._directory / folder):
            path = f"{folder}/{entry.name}"
            if not self._is_included(path) or path == QUEUE_ENDS_PATH:
                continue
            if entry.is_dir(follow_symlinks=False):
                self._folders.append(path)
                self._note(path)
            elif entry.is_file(follow_symlinks=False):
                self._sizes[path] = size = entry.stat(follow_symlinks=False).st_size
                self.inodes[entry.inode()] = path, size

    def preserve(self, path: str) -> None:
        """Keep the content of a file or folder that is about to lose its path.

        The caller holds `lock`.
        """
        if path in self._sizes:
            self._keep(path)
        elif path in self._folders:
            for each in [each for each in self._sizes if each.startswith(f"{path}/")]:
                self._keep(each)

    def _keep(self, path: str) -> None:
        if path not in self._kept:
            fd = fileutil.open_to_read(self._directory / path)
            if self._sizes[path] > _READ_BYTES:
                self._kept[path] = fd
            else:
                try:
                    self._kept[path] = os.pread(fd, self._sizes[path], 0)
                finally:
                    fileutil.close(fd)

    def preserve_content(self, path: str) -> None:
        """Keep the content of a file that is overwritten without a recorded change.

        The caller holds `lock`.
        """
        if path in self._former or isinstance(self._kept.get(path), bytes):
            return
        if self._being_read is not None and self._being_read[0] == path:
            _, fd, size = self._being_read
            self._former[path] = os.pread(fd, size, 0)
        elif path in self._sizes:
            preserved = self._kept.get(path)
            fd = preserved if isinstance(preserved, int) else fileutil.open_to_read(self._directory / path)
            try:
                self._former[path] = os.pread(fd, self._sizes[path], 0)
            finally:
                if preserved is None:
                    fileutil.close(fd)

    def parts(self) -> Iterator[bytes]:
        """Iterate over the snapshot in parts of less than 1 MiB for `StateReplica.load`.

        Raise StoreBusy or StoreFailed if a file cannot be read.
        """
        entries: list[Any] = [[folder, _FOLDER, b""] for folder in self._folders]
        size = sum(len(folder) + _ENTRY_BYTES for folder in self._folders)
        for path, at, content in self._pieces():
            if entries and size + len(content) > _PART_BYTES:
                yield from encode_parts(entries)
                entries, size = [], 0
            entries.append([path, at, content])
            size += len(content) + len(path) + _ENTRY_BYTES
        yield from encode_parts(entries)

    def _pieces(self) -> Iterator[tuple[str, int, bytes]]:
        for path in list(self._sizes):
            with self._lock:
                preserved = self._kept.pop(path, None)
                size = self._sizes.pop(path)
                if preserved is None:
                    preserved = fileutil.open_to_read(self._directory / path)
                if isinstance(preserved, int):
                    self._being_read = path, preserved, size
            if isinstance(preserved, bytes):
                yield path, 0, preserved.ljust(size, b"\0")
                continue
            try:
                if not size:
                    yield path, 0, b""
                for at in range(0, size, _PART_BYTES):
                    length = min(_PART_BYTES, size - at)
                    # A file that was truncated meanwhile gets its bytes from the changes that follow.
                    with self._lock:
                        former = self._former.get(path)
                        content = os.pread(preserved, length, at) if former is None else former[at : at + length]
                    yield path, at, content.ljust(length, b"\0")
            finally:
                with self._lock:
                    self._being_read = None
                    self._former.pop(path, None)
                fileutil.close(preserved)

    def close(self) -> None:
        """Release the files. May be called again, by any thread."""
        with self._lock:
            on_close, self._on_close = self._on_close, None
            if on_close is not None:
                on_close(self)
            for preserved in self._kept.values():
                if isinstance(preserved, int):
                    with contextlib.suppress(OSError):
                        fileutil.close(preserved)
            self._kept.clear()
            self._former.clear()
            self._sizes.clear()


def encode_parts(entries: list[Any]) -> Iterator[bytes]:
    """Encode entries as parts; many folders are split into several parts.

    A part has at most 500 entries.
    """
    step = 500
    many = [entries[at : at + step] for at in range(0, len(entries), step)] if len(entries) > step else [entries]
    yield from (msgpack.packb(each, unicode_errors="surrogateescape") for each in many if each)


def read_part(
    part: bytes | memoryview, is_expected: Callable[[str], bool] = is_state
) -> list[tuple[str, int | None, bytes]]:
    """Return path, offset and bytes of each entry of a part.

    The offset is None for a folder. Raise StateMismatch if the bytes are no part of a snapshot, or a path is not
    expected.
    """
    try:
        unpacked = msgpack.unpackb(part, unicode_errors="surrogateescape")
        entries = [(path, at, content) for path, at, content in unpacked]
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise StateMismatch(f"a malformed part of a snapshot: {error}") from None
    found: list[tuple[str, int | None, bytes]] = []
    for path, at, content in entries:
        if not isinstance(path, str) or not is_expected(path):
            raise not_state(path)
        if type(at) is not int or type(content) is not bytes or not _FOLDER <= at <= MAX_FILE_BYTES - len(content):
            raise StateMismatch(f"a malformed part of a snapshot: {path!r:.200}")
        found.append((path, None if at == _FOLDER else at, content))
    return found
