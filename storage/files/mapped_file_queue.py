"""A sequence of files of equal size, named by their first byte's position.

The name is the position in 20 digits. Files are mapped when they are first accessed. The sequence has no gaps; only
files at its beginning may have been deleted.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from raymq.storage.errors import StoreCorrupt, StoreError
from raymq.storage.files import fileutil
from raymq.storage.files.mapped_file import MappedFile, sync_path
from raymq.storage.files.mapped_file_cache import MappedFileCache

_NAME = re.compile(r"[0-9]{20}")
#: Parent folders that a store may have made: the queue's topic, consumequeue/ or commitlog/, the root.
_LEVELS = 3


def file_name(start: int) -> str:
    """Return the name of the file that begins at `start`."""
    return f"{start:020d}"


class MappedFileQueue:
    """The files of one folder.

    Thread rule: one writer. `sync` and its parts may run in another thread at the same time. `write` may run in one
    other thread, for positions that are neither mapped nor read yet.
    """

    def __init__(
        self,
        folder: Path,
        file_bytes: int,
        *,
        writable: bool,
        allocate_step_bytes: int = 0,
        open_files: MappedFileCache | None = None,
        whole_to: int | None = None,
        reserved: bool = False,
    ) -> None:
        """Look up the existing files; nothing is created yet.

        Args:
            open_files: limits how many files are mapped, shared with other sequences; None = no limit.
            reserved: as in `MappedFile`.
            whole_to: the position up to which everything was on disk when the machine crashed; None = the machine did
                not crash.

        Raises:
            StoreCorrupt: a file has another size, or is missing. A shorter file is treated as cut off, and grown, if it
                is the last one or ends behind `whole_to`.
        """
        self.folder = folder
        self._folder_text = str(folder)
        self.file_bytes = file_bytes
        self._writable = writable
        self._step = allocate_step_bytes
        self._files: dict[int, MappedFile | None] = {}
        #: The file that `extend` returned last, if it is still mapped.
        self._newest: MappedFile | None = None
        #: Whether the name of a file may be missing on disk.
        self._new_names = False
        self._file_cache = open_files
        self._reserved = reserved
        self._prepared: dict[int, MappedFile] = {}
        self._creating = threading.Lock()
        sizes = _sizes(folder)
        starts = sorted(sizes)
        while starts and sizes[starts[-1]] == 0 and writable:
            fileutil.remove(folder / file_name(starts.pop()))
        for start in starts:
            unsure = start == starts[-1] or (whole_to is not None and start + file_bytes > whole_to)
            short = unsure and sizes[start] < file_bytes
            if start % file_bytes or not (sizes[start] == file_bytes or short):
                raise StoreCorrupt(
                    str(folder / file_name(start)), 0, f"a file of {sizes[start]} bytes, not {file_bytes}"
                )
            if start - file_bytes not in sizes and start != starts[0]:
                raise StoreCorrupt(str(folder / file_name(start - file_bytes)), 0, "the file is missing")
            self._files[start] = None
        self._new_names = writable and bool(self._files)

    @property
    def start(self) -> int:
        """Return the position of the first existing byte; 0 without files."""
        return next(iter(self._files), 0)

    @property
    def end(self) -> int:
        """Return the position after the last file's last byte; 0 without files."""
        return next(reversed(self._files)) + self.file_bytes if self._files else 0

    @property
    def starts(self) -> list[int]:
        """Return the positions where the files begin, ascending."""
        return list(self._files)

    def file_at(self, position: int) -> MappedFile:
        """Return the file that contains `position`, mapped; raise KeyError if there is none."""
        start = position - position % self.file_bytes
        file = self._files[start]
        if file is None:
            file = self._map(start)
            self._bound(file)
        file.used = True
        return file

    def read(self, position: int, length: int) -> bytes:
        """Return at most `length` bytes at `position`, from one file.

        A file that is not mapped stays unmapped.
        """
        start = position - position % self.file_bytes
        at = position - start
        file = self._files[start]
        if file is not None:
            return bytes(file.view[at : at + length])
        fd = self._open_to_read(start)
        try:
            return self._read(fd, at, length)
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def reading(self, start: int) -> Iterator[Callable[[int, int], bytes]]:
        """Yield a function that reads from the file that begins at `start`.

        The function takes a position within the file and a length. The file is opened once at most.
        """
        file = self._files[start]
        if file is not None:
            view = file.view
            yield lambda at, length: bytes(view[at : at + length])
            return
        fd = self._open_to_read(start)
        try:
            yield lambda at, length: self._read(fd, at, length)
        finally:
            os.close(fd)

    def _open_to_read(self, start: int) -> int:
        # A string is faster than a Path, and opening a store with many queues calls this very often.
        path = f"{self._folder_text}/{file_name(start)}"
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # try again, to raise a StoreError
            return fileutil.open_to_read(Path(path))

    def _read(self, fd: int, at: int, length: int) -> bytes:
        # Missing bytes of a cut-off file read as zeros, as in its mapping.
        return os.pread(fd, length, at).ljust(min(length, self.file_bytes - at), b"\0")

    def extend(self, position: int) -> MappedFile:
        """Return the file that contains `position`, creating it if needed.

        A new file must follow the last file, or be the first one.
        """
        newest = self._newest
        if newest is not None and 0 <= position - newest.start < self.file_bytes:
            newest.used = True
            return newest
        start = position - position % self.file_bytes
        if start not in self._files:
            if self._files and start != self.end:
                raise ValueError(f"{start} does not follow the last file's end {self.end}")
            if self._writable:
                fileutil.make_folder(self.folder, durable=False)
            with self._creating:
                file = self._files[start] = self._prepared.pop(start, None) or self._open(start)
            self._bound(file)
            self._new_names = True
        self._newest = self.file_at(start)
        return self._newest

    def write(self, position: int, content: bytes) -> None:
        """Write bytes at `position` without mapping a file.

        Missing folders and files are made.

        Raises:
            StoreFull, StoreFailed: nothing was written, or only a part.
        """
        view = memoryview(content)
        while view:
            start = position - position % self.file_bytes
            part = view[: start + self.file_bytes - position]
            new = start not in self._files
            if new:
                if self._files and start != self.end:
                    raise ValueError(f"{start} does not follow the last file's end {self.end}")
                fileutil.make_folder(self.folder, durable=False)
            fileutil.write_at(self.folder / file_name(start), self.file_bytes, position - start, part)
            if new:
                with self._creating:
                    self._files[start] = None
                self._new_names = True
            view = view[len(part) :]
            position += len(part)

    def prepare(self, position: int) -> MappedFile:
        """Make the file that contains `position` before `extend` needs it, and return it.

        One thread other than the writer may call it.
        """
        start = position - position % self.file_bytes
        with self._creating:
            if start not in self._files:
                if start not in self._prepared:
                    fileutil.make_folder(self.folder, durable=False)
                    self._prepared[start] = self._open(start)
                return self._prepared[start]
        return self._map(start)

    def close_mapping(self, start: int) -> None:
        """Close one file's mapping; the next access maps it again."""
        self._close(start)

    def detach_before(self, position: int) -> list[tuple[Path, MappedFile | None]]:
        """Forget the files that end at or before `position`, except the last file.

        Return their paths and mappings: the files are still on disk and open.
        """
        removed = [start for start in self.starts[:-1] if start + self.file_bytes <= position]
        detached = [(self.folder / file_name(start), self._files[start]) for start in removed]
        if removed:  # A new dict, because other threads may be iterating over the old one.
            with self._creating:
                self._files = {start: file for start, file in self._files.items() if start not in removed}
        return detached

    def zero_from(self, position: int, *, durably: bool = False) -> None:
        """Drop all bytes from `position` on.

        Later files are deleted; the file that contains `position` keeps its size, filled with zeros.

        Args:
            durably: the zeros are on disk when this returns. Deletions of files always are.
        """
        for start in reversed(self.starts):
            if start > position or (start == position and len(self._files) > 1):
                self._close(start)
                del self._files[start]
                fileutil.remove(self.folder / file_name(start))
            elif position < start + self.file_bytes:
                self._close(start)
                fd = fileutil.create_sparse(self.folder / file_name(start), self.file_bytes)
                try:
                    fileutil.zero_from(fd, position - start, self.file_bytes, self.folder / file_name(start))
                    if durably:
                        fileutil.fdatasync(fd, self.folder / file_name(start))
                finally:
                    fileutil.close(fd)

    def last_data(self, begin: int) -> int:
        """Return the position after the last nonzero byte at or behind `begin`.

        Return `begin` if there is none.
        """
        last = begin
        for start in self.starts:
            if start + self.file_bytes > begin:
                at = max(0, begin - start)
                used = self.file_at(start).last_data(at, self.file_bytes)
                last = max(last, start + used) if used > at else last
        return last

    def rewrite(self, begin: int, end: int) -> None:
        """Make the next `sync` write begin..end again.

        This includes pages that the kernel considers written.
        """
        for file, start, stop in self.ranges(begin, end):
            file.rewrite(start, stop)

    def ranges(self, begin: int, end: int) -> Iterator[tuple[MappedFile, int, int]]:
        """Yield the files that hold begin..end, each with the range within the file."""
        while begin < end:
            file = self.file_at(begin)
            stop = min(end, file.start + self.file_bytes)
            yield file, begin - file.start, stop - file.start
            begin = stop

    def sync(self, begin: int, end: int, *, names: bool = False) -> None:
        """Sync begin..end and the names of new files to disk.

        Files that were never mapped have no bytes to sync.

        Args:
            names: sync all names, also of files that existed when the store was opened.
        """
        if names or self._new_names:
            try:
                for folder in self.take_new_names(anyway=names):
                    fileutil.sync_directory(folder)
            except StoreError:
                self._new_names = True  # the next sync has to do it
                raise
        self.sync_data(begin, end)

    def mark_names_synced(self, end: int) -> None:
        """Record that the names of files with bytes before `end` are on disk."""
        if self._files and end > next(reversed(self._files)):
            self._new_names = False

    def take_new_names(self, *, anyway: bool = False) -> list[Path]:
        """Return the folders to sync so that the files' names are on disk.

        Return an empty list if the names are on disk, or if an earlier call returned the folders.

        Args:
            anyway: return the folders even if the names are on disk.
        """
        if not (self._new_names or (anyway and self._files)):
            return []
        self._new_names = False
        return [self.folder, *self.folder.parents[:_LEVELS]]

    def start_sync(self, begin: int, end: int) -> None:
        """Make the kernel start the writes that `sync_data` waits for."""
        for start in self.starts:
            if start < end and begin < start + self.file_bytes:
                fileutil.start_writeback(self.folder / file_name(start))

    def sync_data(self, begin: int, end: int) -> None:
        """Sync begin..end to disk, without the files' names."""
        for start, file in self._files.copy().items():
            if start < end and begin < start + self.file_bytes:
                if file is not None:
                    file.sync()
                elif self._file_cache is not None:  # The cache may have closed it after a write.
                    sync_path(self.folder / file_name(start))

    def close(self) -> None:
        """Close all files and remove prepared files that were not used.

        Leases stay valid.
        """
        for start in self.starts:
            self._close(start)
        while self._prepared:
            _, file = self._prepared.popitem()
            file.close()
            with contextlib.suppress(StoreError):  # An empty file behind the last one is harmless.
                fileutil.remove(file.path)

    def _map(self, start: int) -> MappedFile:
        """Return a file of the sequence, mapping it if needed.

        The writer and `prepare` get the same object.
        """
        with self._creating:
            file = self._files[start]
            if file is None:
                file = self._files[start] = self._open(start)
            return file

    def _bound(self, file: MappedFile) -> None:
        """Register a newly mapped file, which may close another file; writer only."""
        if self._file_cache is not None:
            self._file_cache.add(self, file)

    def _open(self, start: int) -> MappedFile:
        path = self.folder / file_name(start)
        return MappedFile(
            path,
            start,
            self.file_bytes,
            writable=self._writable,
            allocate_step_bytes=self._step,
            reserved=self._reserved,
        )

    def _close(self, start: int) -> None:
        file = self._files.get(start)
        if file is not None:
            file.close()
            self._files[start] = None
            if file is self._newest:
                self._newest = None


def _sizes(folder: Path) -> dict[int, int]:
    """Return the sizes of the sequence's files in `folder` by their start positions."""
    sizes: dict[int, int] = {}
    for entry in fileutil.entries_of(folder):
        if _NAME.fullmatch(entry.name):
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat()
                if stat.S_ISREG(status.st_mode):
                    sizes[int(entry.name)] = status.st_size
    return sizes


def files_of(folder: Path) -> list[Path]:
    """Return the files of the sequence in `folder`, ascending.

    All other files in the folder are ignored.
    """
    return [
        folder / entry.name for entry in fileutil.entries_of(folder) if _NAME.fullmatch(entry.name) and entry.is_file()
    ]
