"""A sequence of files of equal size, each named by the position of its first byte in 20 digits.

Files are mapped when they are first touched. There are no gaps but at the beginning (what was deleted).
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
from raymq.storage.files.open_files import OpenFiles

_NAME = re.compile(r"[0-9]{20}")
#: Folders above the files' own that a store may have made: the queue's topic, consumequeue/ or commitlog/, the root.
_LEVELS = 3


def file_name(start: int) -> str:
    """The name of the file that begins at `start`."""
    return f"{start:020d}"


class MappedFileQueue:
    """The files of one folder.

    Thread rule: one writer; `sync` and its parts may run in another thread at the same time, and so may `write`, in
    one, of what nobody maps or reads yet.
    """

    def __init__(
        self,
        folder: Path,
        file_bytes: int,
        *,
        writable: bool,
        allocate_step_bytes: int = 0,
        open_files: OpenFiles | None = None,
        whole_to: int | None = None,
        reserved: bool = False,
    ) -> None:
        """Look what is there; nothing is created yet.

        Args:
            open_files: bounds how many files are mapped, these among others; None = as many as are touched.
            reserved: as in `MappedFile`.
            whole_to: the position up to which all was on disk when the machine died; None = it did not.

        Raises:
            StoreCorrupt: a file of another size, or a gap. A shorter file that is the last one, or ends behind
                `whole_to`, is taken as cut off and grown.
        """
        self.folder = folder
        self._folder_text = str(folder)
        self.file_bytes = file_bytes
        self._writable = writable
        self._step = allocate_step_bytes
        self._files: dict[int, MappedFile | None] = {}
        #: The file that was extended last, if it is still mapped.
        self._newest: MappedFile | None = None
        #: Whether a file's name may not be on disk.
        self._new_names = False
        self._open_files = open_files
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
        """Position of the first byte that is there; 0 without files."""
        return next(iter(self._files), 0)

    @property
    def end(self) -> int:
        """One past the last file's last byte; 0 without files."""
        return next(reversed(self._files)) + self.file_bytes if self._files else 0

    @property
    def starts(self) -> list[int]:
        """Where the files begin, ascending."""
        return list(self._files)

    def file_at(self, position: int) -> MappedFile:
        """The file in which `position` lies; KeyError if there is none."""
        start = position - position % self.file_bytes
        file = self._files[start]
        if file is None:
            file = self._map(start)
            self._bound(file)
        file.used = True
        return file

    def read(self, position: int, length: int) -> bytes:
        """At most `length` bytes of the file in which `position` lies; a file that is not mapped stays so."""
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
        """What reads of the file that begins at `start`, by place in it and length, and opens it once at most."""
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
        # A text, not a Path: opening a store with many queues does this very often.
        path = f"{self._folder_text}/{file_name(start)}"
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # once more, for an error of ours
            return fileutil.open_to_read(Path(path))

    def _read(self, fd: int, at: int, length: int) -> bytes:
        # A file that was cut off goes on with zeros, as its mapping would.
        return os.pread(fd, length, at).ljust(min(length, self.file_bytes - at), b"\0")

    def extend(self, position: int) -> MappedFile:
        """The file in which `position` lies, created behind the last one if need be (or as the first)."""
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
        """Write bytes at `position` without mapping a file; folder and files are made where they are missing.

        Raises:
            StoreFull, StoreFailed: not written, or a part of it.
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
        """The file in which `position` lies, made before `extend` asks for it. For one other thread than the writer."""
        start = position - position % self.file_bytes
        with self._creating:
            if start not in self._files:
                if start not in self._prepared:
                    fileutil.make_folder(self.folder, durable=False)
                    self._prepared[start] = self._open(start)
                return self._prepared[start]
        return self._map(start)

    def close_mapping(self, start: int) -> None:
        """Let go of one file; it is mapped again when it is touched."""
        self._close(start)

    def detach_before(self, position: int) -> list[tuple[Path, MappedFile | None]]:
        """Forget the files that end at or before `position`, but never the last one; they are on disk and open yet."""
        gone = [start for start in self.starts[:-1] if start + self.file_bytes <= position]
        detached = [(self.folder / file_name(start), self._files[start]) for start in gone]
        if gone:  # Another mapping object: other threads may be walking through this one.
            with self._creating:
                self._files = {start: file for start, file in self._files.items() if start not in gone}
        return detached

    def zero_from(self, position: int, *, durably: bool = False) -> None:
        """Drop all bytes from `position` on: later files are deleted, its own keeps its size with zeros behind.

        Args:
            durably: the zeros are on disk when this returns; that files are gone always is.
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
        """One past the last byte from `begin` on that is not zero; `begin` if there is none."""
        last = begin
        for start in self.starts:
            if start + self.file_bytes > begin:
                at = max(0, begin - start)
                used = self.file_at(start).last_data(at, self.file_bytes)
                last = max(last, start + used) if used > at else last
        return last

    def rewrite(self, begin: int, end: int) -> None:
        """Have the next `sync` write begin..end again, also where the kernel believes that it is on disk."""
        for file, start, stop in self.ranges(begin, end):
            file.rewrite(start, stop)

    def ranges(self, begin: int, end: int) -> Iterator[tuple[MappedFile, int, int]]:
        """The files that hold begin..end, each with the part within the file."""
        while begin < end:
            file = self.file_at(begin)
            stop = min(end, file.start + self.file_bytes)
            yield file, begin - file.start, stop - file.start
            begin = stop

    def sync(self, begin: int, end: int, *, names: bool = False) -> None:
        """Bring begin..end and the names of new files to disk (what was never mapped was not written).

        Args:
            names: all names, also those of files that were there when the store was opened.
        """
        if names or self._new_names:
            try:
                for folder in self.take_new_names(anyway=names):
                    fileutil.sync_directory(folder)
            except StoreError:
                self._new_names = True  # the next one has to do it
                raise
        self.sync_data(begin, end)

    def trust_names(self, end: int) -> None:
        """The names of the files that hold the bytes before `end` are on disk."""
        if self._files and end > next(reversed(self._files)):
            self._new_names = False

    def take_new_names(self, *, anyway: bool = False) -> list[Path]:
        """The folders to be synced so that the files' names are on disk; none if they are, or were asked for before.

        Args:
            anyway: also where they are.
        """
        if not (self._new_names or (anyway and self._files)):
            return []
        self._new_names = False
        return [self.folder, *self.folder.parents[:_LEVELS]]

    def start_sync(self, begin: int, end: int) -> None:
        """Have the kernel begin with what `sync_data` waits for."""
        for start in self.starts:
            if start < end and begin < start + self.file_bytes:
                fileutil.start_writing(self.folder / file_name(start))

    def sync_data(self, begin: int, end: int) -> None:
        """Bring begin..end to disk, but no names."""
        for start, file in self._files.copy().items():
            if start < end and begin < start + self.file_bytes:
                if file is not None:
                    file.sync()
                elif self._open_files is not None:  # It may have been written, and closed since.
                    sync_path(self.folder / file_name(start))

    def close(self) -> None:
        """Let go of all files, and remove those that were prepared and not needed; leases stay valid."""
        for start in self.starts:
            self._close(start)
        while self._prepared:
            _, file = self._prepared.popitem()
            file.close()
            with contextlib.suppress(StoreError):  # An empty file behind the last one harms nobody.
                fileutil.remove(file.path)

    def _map(self, start: int) -> MappedFile:
        """A file of the sequence, mapped if it is not; the writer and `prepare` get the same one."""
        with self._creating:
            file = self._files[start]
            if file is None:
                file = self._files[start] = self._open(start)
            return file

    def _bound(self, file: MappedFile) -> None:
        """One more file is mapped; another one may be closed for it. Only the writer does so."""
        if self._open_files is not None:
            self._open_files.add(self, file)

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
    """The sizes of the files of a sequence, by where they begin."""
    sizes: dict[int, int] = {}
    for entry in fileutil.entries_of(folder):
        if _NAME.fullmatch(entry.name):
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat()
                if stat.S_ISREG(status.st_mode):
                    sizes[int(entry.name)] = status.st_size
    return sizes


def files_of(folder: Path) -> list[Path]:
    """The files of a sequence in `folder`, ascending; anything else in it is not ours and left alone."""
    return [
        folder / entry.name for entry in fileutil.entries_of(folder) if _NAME.fullmatch(entry.name) and entry.is_file()
    ]
