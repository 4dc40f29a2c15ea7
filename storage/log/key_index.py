"""The index of keys: RocketMQ's index files, from `topic#key` to physical offsets.

Derived data: rebuilt from the commit log as far as it is missing. What a look-up returns are candidates (other keys
may have the same hash), newest first; the caller compares topic and key.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage.errors import StoreCorrupt, StoreError
from raymq.storage.files import fileutil
from raymq.storage.files.file_work import Ahead
from raymq.storage.files.open_files import OpenFiles
from raymq.storage.log.checkpoint import IndexExtent
from raymq.storage.log.index_file import IndexFile, make_file
from raymq.storage.records.java_hash import index_hash

#: The next file is made when one part in so many of the last one is left.
_PREPARED_WHEN_LEFT: Final = 16
#: How many files are mapped at once.
_MAPPED_FILES: Final = 64


class KeyIndex:
    """All index files of a store. Belongs to the store's writer; `sync` to any thread."""

    def __init__(
        self,
        folder: Path,
        slots: int,
        entries: int,
        *,
        writable: bool,
        ahead: Ahead | None = None,
        rebuilt: bool = False,
    ) -> None:
        """Look at the files.

        Args:
            ahead: where the next pages and the next file are prepared.
            rebuilt: the sizes are surely those of these files: one that is damaged is dropped with those behind it,
                and recovery fills the index again from there.

        Raises:
            StoreCorrupt: a file of another size or with an impossible header, unless `rebuilt`.
        """
        self._folder = folder
        self._slots = slots
        self._capacity = entries
        self._writable = writable
        self._ahead = ahead
        self._open_files = OpenFiles(_MAPPED_FILES) if writable else None
        self._prepared: Path | None = None
        self._preparing = threading.Lock()
        paths = [path for path in fileutil.paths_in(folder) if path.name.isdigit() and len(path.name) == 17]
        if paths and paths[-1].stat().st_size == 0:  # The process died when it had just made the file.
            newest = paths.pop()
            if writable:
                fileutil.remove(newest)
        self._files: list[IndexFile] = []
        self._new_names = False
        for number, path in enumerate(paths):
            try:
                self._files.append(self._file(path))
            except StoreCorrupt:
                if not rebuilt:
                    raise
                for dropped in paths[number:] if writable else ():
                    fileutil.remove(dropped)
                return

    def extent(self) -> IndexExtent:
        """What `sync` brings to disk, and what `restore` can go back to. Any thread."""
        return IndexExtent({file.path.name: file.header for file in list(self._files)})

    def check_against(self, extent: IndexExtent, log_min: int, *, clean: bool) -> None:
        """Forget the files from one on that is gone although the log has its records, or has another header.

        Args:
            clean: nothing was written since; otherwise the last file may have grown.
        """
        headers = {file.path.name: file.header for file in self._files}
        growing = "" if clean else max(extent.files, default="")
        wrong = [
            name
            for name, header in extent.files.items()
            if header[3] >= log_min - 1 and headers.get(name) != header and not (name == growing and name in headers)
        ]
        if wrong:
            self._drop([file for file in self._files if file.path.name >= min(wrong)])

    def restore(self, extent: IndexExtent) -> None:
        """After a loss of power: back to `extent`; what was written later is not trusted."""
        last = max(extent.files, default="")
        self._drop([file for file in self._files if file.path.name > last])
        if self._files and self._files[-1].path.name == last:
            self._files[-1].restore(extent.files[last])

    def _drop(self, files: list[IndexFile]) -> None:
        for file in files:
            self._files.remove(file)
            file.close()
            if self._writable:
                fileutil.remove(file.path)

    def detach_before(self, log_min: int) -> list[tuple[Path, IndexFile]]:
        """Forget the files all of whose records lie before `log_min`, never the newest; they are open yet."""
        gone: list[IndexFile] = []
        for file in self._files[:-1]:
            if file.end_physical >= log_min - 1:  # It may hold the first keys of a record whose last ones lie behind.
                break
            gone.append(file)
        if gone:
            self._files = self._files[len(gone) :]
        return [(file.path, file) for file in gone]

    @property
    def end_physical(self) -> int:
        """Physical offset of the newest record that is indexed; -1 if none is."""
        return max((file.end_physical for file in self._files if file.count > 1), default=-1)

    def newest(self) -> Counter[tuple[int, int]]:
        """The entries of the newest record, whose last keys may be missing: physical offset and hash, and how often.

        A record's keys may be in two files, of which the second one may be gone.
        """
        end = self.end_physical
        found: Counter[tuple[int, int]] = Counter()
        for file in reversed([file for file in self._files if file.count > 1]):
            for entry in file.newest():
                if entry[0] < end:
                    return found
                found[entry] += 1
        return found

    @property
    def end_ms(self) -> int:
        """Store time of the newest record that is indexed; 0 if none is."""
        return max((file.end_ms for file in self._files if file.count > 1), default=0)

    def reserve(self, count: int) -> None:
        """Make sure that `count` more keys can be put; StoreFull if not."""
        if not count or (self._files and self._files[-1].count + count <= self._files[-1].reserved_to):
            return
        file = self._file_with_room()
        file.growing = True
        room = file.room
        if count <= room:
            file.reserve(count)
        else:
            file.reserve(room)
            with self._preparing:
                path = self._prepared or self._next_path()
                make_file(path, self._slots, self._capacity, min(count - room, self._capacity - 1))
                self._prepared = path

    def put(
        self, hashes: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64], timestamps_ms: npt.NDArray[np.int64]
    ) -> None:
        """Index keys in log order, three parallel arrays; rolls to new files as needed."""
        at = 0
        while at < len(hashes):
            file = self._file_with_room()
            stop = min(len(hashes), at + file.room)
            last = int(offsets[stop - 1])
            complete = stop == len(hashes) or int(offsets[stop]) != last
            file.put(hashes[at:stop], offsets[at:stop], timestamps_ms[at:stop], last if complete else last - 1)
            at = stop

    def put_record(self, hashes: list[int], physical_offset: int, timestamp_ms: int) -> None:
        """Index the keys of one record."""
        while hashes:
            file = self._file_with_room()
            room = self._capacity - file.count  # `IndexFile.room`, for each message
            if len(hashes) <= room:
                file.put_few(hashes, physical_offset, timestamp_ms, physical_offset)
                break
            file.put_few(hashes[:room], physical_offset, timestamp_ms, physical_offset - 1)
            hashes = hashes[room:]

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Physical offsets of records that may have the key and may be of that time, newest first.

        None stands for an entry that was looked at in vain, or a file of that time that was opened: see
        `IndexFile.find`. It tells of what is indexed now; it may be gone through in another thread than the writer's.
        """
        files = [
            file
            for file in reversed(self._files)
            if file.count > 1 and file.begin_ms <= end_ms and begin_ms <= file.end_ms
        ]
        return _entries(files, index_hash(f"{topic}#{key}"), begin_ms, end_ms)

    def drop_after(self, timestamp_ms: int) -> None:
        """Delete the files with records stored later than that: after a crash of the machine they are not trusted."""
        self._drop([file for file in self._files if file.count <= 1 or file.end_ms > timestamp_ms])

    def cap(self, log_end: int) -> None:
        """Forget that records at or behind `log_end` were indexed: the log has lost them.

        Their entries stay as candidates that no record confirms, but for files that have no others.
        """
        self._drop([file for file in self._files if file.count > 1 and file.begin_physical >= log_end])
        for file in self._files:
            file.cap(log_end)

    def repair(self, extent: IndexExtent | None) -> None:
        """After a crash of the process: see `IndexFile.repair`. What it wrote behind `extent` is to be synced yet."""
        last = "" if extent is None else max(extent.files, default="")
        for file in self._files:
            if file.path.name >= last:
                file.doubt()
        if self._files:
            self._files[-1].repair()

    def sync(self) -> None:
        """Wait until the entries of before the call are on disk."""
        if self._new_names:
            self._new_names = False
            try:
                for folder in (self._folder, self._folder.parent):
                    fileutil.sync_directory(folder)
            except BaseException:
                self._new_names = True  # the next one has to do it
                raise
        for file in list(self._files):
            file.sync()

    def close(self) -> None:
        """Let go of the files, and remove the one that was prepared and not needed."""
        for file in self._files:
            file.close()
        self._files.clear()
        if self._prepared is not None:
            with contextlib.suppress(StoreError):  # An empty file behind the last one harms nobody.
                fileutil.remove(self._prepared)
            self._prepared = None

    def _file_with_room(self) -> IndexFile:
        newest = self._files[-1] if self._files else None
        if newest is not None and (room := self._capacity - newest.count) > 0:
            if room <= self._capacity // _PREPARED_WHEN_LEFT and not newest.followed and self._ahead is not None:
                newest.followed = True
                self._ahead.ask(partial(self._prepare_behind, newest))
            return newest
        with self._preparing:
            following = self._file(self._prepared or self._next_path())
            following.growing = True
            self._files.append(following)
            self._prepared = None
        self._new_names = True
        return self._files[-1]

    def _prepare_behind(self, newest: IndexFile) -> None:
        """Make the file that follows `newest`. In the thread of `Ahead`."""
        with self._preparing:
            if self._files and self._files[-1] is newest and self._prepared is None:
                path = self._next_path()
                make_file(path, self._slots, self._capacity)
                self._prepared = path

    def _next_path(self) -> Path:
        now = time.time()
        name = time.strftime("%Y%m%d%H%M%S", time.localtime(now)) + f"{int(now * 1000) % 1000:03d}"
        if self._files and name <= self._files[-1].path.name:  # Within the same millisecond, or the clock went back.
            name = f"{int(self._files[-1].path.name) + 1:017d}"
        if self._writable:
            fileutil.make_folder(self._folder, durable=False)
        return self._folder / name

    def _file(self, path: Path) -> IndexFile:
        return IndexFile(
            path,
            self._slots,
            self._capacity,
            writable=self._writable,
            ahead=self._ahead,
            open_files=self._open_files,
        )


def _entries(files: list[IndexFile], key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
    for file in files:
        yield None
        yield from file.find(key_hash, begin_ms, end_ms)
