"""A sequence of files of equal size, each named by the position of its first byte in 20 digits.

Files are mapped when they are first touched. There are no gaps but at the beginning (what was deleted).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from raymq.storage import fileutil
from raymq.storage.errors import StoreCorrupt
from raymq.storage.mapped_file import MappedFile

_NAME = re.compile(r"[0-9]{20}")
#: Folders above the files' own that a store may have made: the queue's topic, consumequeue/ or commitlog/, the root.
_LEVELS = 3


def file_name(start: int) -> str:
    """The name of the file that begins at `start`."""
    return f"{start:020d}"


class MappedFileQueue:
    """The files of one folder.

    Thread rule: one writer; `sync` may run in another thread at the same time.
    """

    def __init__(self, folder: Path, file_bytes: int, *, writable: bool, allocate_step_bytes: int = 0) -> None:
        """Look what is there; nothing is created yet.

        Raises:
            StoreCorrupt: a file of another size (a shorter last file is taken as cut off and grown), or a gap.
        """
        self.folder = folder
        self.file_bytes = file_bytes
        self._writable = writable
        self._step = allocate_step_bytes
        self._files: dict[int, MappedFile | None] = {}
        self._new_names = False
        sizes = {int(p.name): p.stat().st_size for p in files_of(folder)}
        starts = sorted(sizes)
        while starts and sizes[starts[-1]] == 0 and writable:
            fileutil.remove(folder / file_name(starts.pop()))
        for start in starts:
            short = start == starts[-1] and sizes[start] < file_bytes
            if start % file_bytes or not (sizes[start] == file_bytes or short):
                raise StoreCorrupt(
                    str(folder / file_name(start)), 0, f"a file of {sizes[start]} bytes, not {file_bytes}"
                )
            if start - file_bytes not in sizes and start != starts[0]:
                raise StoreCorrupt(str(folder / file_name(start - file_bytes)), 0, "the file is missing")
            self._files[start] = None

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
            file = self._files[start] = self._open(start)
        return file

    def extend(self, position: int) -> MappedFile:
        """The file in which `position` lies, created behind the last one if need be (or as the first)."""
        start = position - position % self.file_bytes
        if start not in self._files:
            if self._files and start != self.end:
                raise ValueError(f"{start} does not follow the last file's end {self.end}")
            self.folder.mkdir(parents=True, exist_ok=True)
            self._files[start] = self._open(start)
            self._new_names = True
        return self.file_at(start)

    def zero_from(self, position: int) -> None:
        """Drop all bytes from `position` on: later files are deleted, its own keeps its size with zeros behind."""
        for start in reversed(self.starts):
            if start > position or (start == position and len(self._files) > 1):
                self._close(start)
                del self._files[start]
                fileutil.remove(self.folder / file_name(start))
            elif position < start + self.file_bytes:
                self._close(start)
                fd = fileutil.create_sparse(self.folder / file_name(start), self.file_bytes)
                try:
                    fileutil.zero_from(fd, position - start, self.file_bytes)
                finally:
                    fileutil.close(fd)

    def ranges(self, begin: int, end: int) -> Iterator[tuple[MappedFile, int, int]]:
        """The files that hold begin..end, each with the part within the file."""
        while begin < end:
            file = self.file_at(begin)
            stop = min(end, file.start + self.file_bytes)
            yield file, begin - file.start, stop - file.start
            begin = stop

    def sync(self, begin: int, end: int) -> None:
        """Bring begin..end and the names of new files to disk (a file that was not mapped was not written)."""
        if self._new_names:
            self._new_names = False
            for folder in (self.folder, *self.folder.parents[:_LEVELS]):
                fileutil.sync_directory(folder)
        for start, file in list(self._files.items()):
            if file is not None and start < end and begin < start + self.file_bytes:
                file.sync()

    def close(self) -> None:
        """Let go of all files; leases stay valid."""
        for start in self.starts:
            self._close(start)

    def _open(self, start: int) -> MappedFile:
        path = self.folder / file_name(start)
        return MappedFile(path, start, self.file_bytes, writable=self._writable, allocate_step_bytes=self._step)

    def _close(self, start: int) -> None:
        file = self._files[start]
        if file is not None:
            file.close()
            self._files[start] = None


def files_of(folder: Path) -> list[Path]:
    """The files of a sequence in `folder`, ascending; anything else in it is not ours and left alone."""
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if _NAME.fullmatch(p.name) and p.is_file())
