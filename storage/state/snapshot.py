"""All state of a directory at one moment, read while it goes on changing.

What files there are, and how long, is noted at that moment; their bytes are read later. By then they may have others:
but each byte that is another one is in a change that follows, which a replica makes behind the snapshot. Only what a
file's path named then must not get lost: so it is opened before the path names another file, or none.
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
from raymq.storage.state.changes import MOST_FILE
from raymq.storage.state.state_files import CONFIG, OURS, is_state

#: So many bytes of files are in one part, which is somewhat larger.
_PART_BYTES: Final = 900 << 10
#: What an entry of a part takes besides its bytes and its path.
_ENTRY_BYTES: Final = 32
#: Files up to this size are read where they have to be kept; larger ones stay open.
_READ_BYTES: Final = 64 << 10
#: Told beside the state, by who sends it (`queue_ends`); an older replica may have kept it.
NOT_NOTED: Final = f"{OURS}/queue_ends.json"
#: In place of an offset: it is a folder.
_FOLDER: Final = -1


class StateSnapshot:
    """Made by `StateRecorder.snapshot`; `parts` belongs to any one thread.

    Attributes:
        sequence: it has all changes up to this one.
    """

    def __init__(
        self, directory: Path, sequence: int, lock: threading.RLock, on_close: Callable[[StateSnapshot], None]
    ) -> None:
        """Note what there is; the caller holds `lock`, as whoever changes a file."""
        self.sequence = sequence
        self._directory = directory
        self._lock = lock
        self._on_close: Callable[[StateSnapshot], None] | None = on_close
        self._folders: list[str] = []
        #: What was not read yet: sizes by path, and what was read or opened before its path was lost.
        self._sizes: dict[str, int] = {}
        self._kept: dict[str, bytes | int] = {}
        #: What files held that have other bytes by now, of which no change tells; and the one that is being read.
        self._former: dict[str, bytes] = {}
        self._being_read: tuple[str, int, int] | None = None
        #: By the number that the file system has given to each file: its path and size.
        self.inodes: dict[int, tuple[str, int]] = {}
        for top in (CONFIG, OURS):
            self._note(top)
        self._total = sum(self._sizes.values())

    @property
    def total_bytes(self) -> int:
        """How large the files are."""
        return self._total

    def _note(self, folder: str) -> None:
        for entry in fileutil.entries_of(self._directory / folder):
            path = f"{folder}/{entry.name}"
            if not is_state(path) or path == NOT_NOTED:
                continue
            if entry.is_dir(follow_symlinks=False):
                self._folders.append(path)
                self._note(path)
            elif entry.is_file(follow_symlinks=False):
                self._sizes[path] = size = entry.stat(follow_symlinks=False).st_size
                self.inodes[entry.inode()] = path, size

    def keep(self, path: str) -> None:
        """A file or folder is about to lose its path; `lock` is held."""
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

    def keep_content(self, path: str) -> None:
        """The bytes of a file are about to be others, and no change will tell of that; `lock` is held."""
        if path in self._former or isinstance(self._kept.get(path), bytes):
            return
        if self._being_read is not None and self._being_read[0] == path:
            _, fd, size = self._being_read
            self._former[path] = os.pread(fd, size, 0)
        elif path in self._sizes:
            kept = self._kept.get(path)
            fd = kept if isinstance(kept, int) else fileutil.open_to_read(self._directory / path)
            try:
                self._former[path] = os.pread(fd, self._sizes[path], 0)
            finally:
                if kept is None:
                    fileutil.close(fd)

    def parts(self) -> Iterator[bytes]:
        """All of it, in pieces of less than 1 MiB for `StateReplica.load`. StoreBusy, StoreFailed."""
        entries: list[Any] = [[folder, _FOLDER, b""] for folder in self._folders]
        size = sum(len(folder) + _ENTRY_BYTES for folder in self._folders)
        for path, at, content in self._pieces():
            if entries and size + len(content) > _PART_BYTES:
                yield from packed(entries)
                entries, size = [], 0
            entries.append([path, at, content])
            size += len(content) + len(path) + _ENTRY_BYTES
        yield from packed(entries)

    def _pieces(self) -> Iterator[tuple[str, int, bytes]]:
        for path in list(self._sizes):
            with self._lock:
                kept = self._kept.pop(path, None)
                size = self._sizes.pop(path)
                if kept is None:
                    kept = fileutil.open_to_read(self._directory / path)
                if isinstance(kept, int):
                    self._being_read = path, kept, size
            if isinstance(kept, bytes):
                yield path, 0, kept.ljust(size, b"\0")
                continue
            try:
                if not size:
                    yield path, 0, b""
                for at in range(0, size, _PART_BYTES):
                    length = min(_PART_BYTES, size - at)
                    # One that was cut meanwhile gets its bytes from the changes that follow.
                    with self._lock:
                        former = self._former.get(path)
                        content = os.pread(kept, length, at) if former is None else former[at : at + length]
                    yield path, at, content.ljust(length, b"\0")
            finally:
                with self._lock:
                    self._being_read = None
                    self._former.pop(path, None)
                fileutil.close(kept)

    def close(self) -> None:
        """Let go of files. May be called again, by any thread."""
        with self._lock:
            on_close, self._on_close = self._on_close, None
            if on_close is not None:
                on_close(self)
            for kept in self._kept.values():
                if isinstance(kept, int):
                    with contextlib.suppress(OSError):
                        fileutil.close(kept)
            self._kept.clear()
            self._former.clear()
            self._sizes.clear()


def packed(entries: list[Any]) -> Iterator[bytes]:
    """Entries as parts: in pieces of at most so many bytes also where there are many folders."""
    step = 500
    many = [entries[at : at + step] for at in range(0, len(entries), step)] if len(entries) > step else [entries]
    yield from (msgpack.packb(each, unicode_errors="surrogateescape") for each in many if each)


def read_part(
    part: bytes | memoryview, is_expected: Callable[[str], bool] = is_state
) -> list[tuple[str, int | None, bytes]]:
    """Path, offset (None: it is a folder) and bytes of what is in a part; StateMismatch: it is none."""
    try:
        told = msgpack.unpackb(part, unicode_errors="surrogateescape")
        entries = [(path, at, content) for path, at, content in told]
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise StateMismatch(f"a part of a snapshot of another form: {error}") from None
    found: list[tuple[str, int | None, bytes]] = []
    for path, at, content in entries:
        if not isinstance(path, str) or not is_expected(path):
            raise StateMismatch(f"a snapshot of what is no state: {path!r:.200}")
        if type(at) is not int or type(content) is not bytes or not _FOLDER <= at <= MOST_FILE - len(content):
            raise StateMismatch(f"a part of a snapshot of another form: {path!r:.200}")
        found.append((path, None if at == _FOLDER else at, content))
    return found
