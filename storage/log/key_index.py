"""The index of keys: RocketMQ's index files, from `topic#key` to physical offsets.

The index is derived data; missing parts are rebuilt from the commit log. A lookup returns candidates, newest first,
because other keys may have the same hash; the caller compares topic and key.
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
from raymq.storage.files.background_preparer import BackgroundPreparer
from raymq.storage.files.mapped_file_cache import MappedFileCache
from raymq.storage.log.checkpoint import IndexExtent
from raymq.storage.log.index_file import IndexFile, make_file
from raymq.storage.records.java_hash import index_hash

#: The next file is prepared when only this fraction (1/16) of the last one is left.
_PREPARED_WHEN_LEFT: Final = 16
#: How many files are mapped at once.
_MAPPED_FILES: Final = 64


class KeyIndex:
    """All index files of a store.

    It belongs to the store's writer; any thread may call `sync`.
    """

    def __init__(
        self,
        folder: Path,
        slots: int,
        entries: int,
        *,
        writable: bool,
        ahead: BackgroundPreparer | None = None,
        rebuilt: bool = False,
    ) -> None:
        """Look up the files.

        Args:
            ahead: the thread that prepares the next pages and the next file.
            rebuilt: the sizes are known to be those of these files: a damaged file is dropped together with the files
                behind it, and recovery fills the index again from there.

        Raises:
            StoreCorrupt: a file has another size or an impossible header, unless `rebuilt`.
        """
        self._folder = folder
        self._slots = slots
        self._capacity = entries
        self._writable = writable
        self._ahead = ahead
        self._file_cache = MappedFileCache(_MAPPED_FILES) if writable else None
        self._prepared: Path | None = None
        self._preparing = threading.Lock()
        paths = [path for path in fileutil.paths_in(folder) if path.name.isdigit() and len(path.name) == 17]
        if paths and paths[-1].stat().st_size == 0:  # The process crashed when it had just made the file.
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
        """Return what `sync` brings to disk, and `restore` can return to; any thread."""
        return IndexExtent({file.path.name: file.header for file in list(self._files)})

    def check_against(self, extent: IndexExtent, log_min: int, *, clean: bool) -> None:
        """Drop the files from the first one on that contradicts `extent`.

        A file contradicts it if its header differs, or if it is missing although the log has its records. After a crash
        all files are dropped if `extent` has none: the log is read from there on anyway, and a missing first file would
        not be noticed.

        Args:
            clean: nothing was written since `extent` was saved; otherwise the last file may have grown.
        """
        if not (clean or extent.files):
            self._drop(list(self._files))
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
        """Reset the index to `extent` after a loss of power; later writes are not trusted."""
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
        """Forget the files whose records all lie before `log_min`, except the newest file.

        Return their paths and files, which are still open.
        """
        removed: list[IndexFile] = []
        for file in self._files[:-1]:
            # It may hold the first keys of a record whose other keys are in the next file.
            if file.end_physical >= log_min - 1:
                break
            removed.append(file)
        if removed:
            self._files = self._files[len(removed) :]
        return [(file.path, file) for file in removed]

    @property
    def end_physical(self) -> int:
        """Return the physical offset of the newest indexed record; -1 if there is none."""
        return max((file.end_physical for file in self._files if file.count > 1), default=-1)

    def newest(self) -> Counter[tuple[int, int]]:
        """Count the newest record's entries by physical offset and hash.

        The last keys of that record may be missing. Its keys may be in two files, of which the second one may be
        missing.
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
        """Return the store time of the newest indexed record; 0 if there is none."""
        return max((file.end_ms for file in self._files if file.count > 1), default=0)

    def reserve(self, count: int) -> None:
        """Make sure that `count` more keys can be put; raise StoreFull if not."""
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
        """Index keys in log order, given as three parallel arrays; roll files as needed."""
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
            room = self._capacity - file.count  # same as `IndexFile.room`, inlined because it runs for each message
            if len(hashes) <= room:
                file.put_few(hashes, physical_offset, timestamp_ms, physical_offset)
                break
            file.put_few(hashes[:room], physical_offset, timestamp_ms, physical_offset - 1)
            hashes = hashes[room:]

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Yield physical offsets of records that may match the key and the time, newest first.

        None is yielded for each examined entry that does not match, and for each file of that time that is opened; see
        `IndexFile.find`. The result covers the records that are indexed at the call. Another thread than the writer's
        may iterate over it.
        """
        files = [
            file
            for file in reversed(self._files)
            if file.count > 1 and file.begin_ms <= end_ms and begin_ms <= file.end_ms
        ]
        return _entries(files, index_hash(f"{topic}#{key}"), begin_ms, end_ms)

    def drop_after(self, timestamp_ms: int) -> None:
        """Delete the files with records stored after `timestamp_ms`.

        They are not trusted after a crash of the machine.
        """
        self._drop([file for file in self._files if file.count <= 1 or file.end_ms > timestamp_ms])

    def truncate(self, log_end: int) -> None:
        """Forget that records at or behind `log_end` were indexed, because the log lost them.

        Their entries stay as candidates without a matching record; files that have only such entries are deleted.
        """
        self._drop([file for file in self._files if file.count > 1 and file.begin_physical >= log_end])
        for file in self._files:
            file.truncate(log_end)

    def repair(self, extent: IndexExtent | None) -> None:
        """Repair the index after a crash of the process; see `IndexFile.repair`.

        Entries written after `extent` still have to be synced.
        """
        last = "" if extent is None else max(extent.files, default="")
        for file in self._files:
            if file.path.name >= last:
                file.mark_dirty()
        if self._files:
            self._files[-1].repair()

    def sync(self) -> None:
        """Wait until the entries from before the call are on disk."""
        if self._new_names:
            self._new_names = False
            try:
                for folder in (self._folder, self._folder.parent):
                    fileutil.sync_directory(folder)
            except BaseException:
                self._new_names = True  # the next sync has to do it
                raise
        for file in list(self._files):
            file.sync()

    def close(self) -> None:
        """Close the files and remove the prepared file if it was not used."""
        for file in self._files:
            file.close()
        self._files.clear()
        if self._prepared is not None:
            with contextlib.suppress(StoreError):  # An empty file behind the last one is harmless.
                fileutil.remove(self._prepared)
            self._prepared = None

    def _file_with_room(self) -> IndexFile:
        newest = self._files[-1] if self._files else None
        if newest is not None and (room := self._capacity - newest.count) > 0:
            if room <= self._capacity // _PREPARED_WHEN_LEFT and not newest.next_requested and self._ahead is not None:
                newest.next_requested = True
                self._ahead.submit(partial(self._prepare_behind, newest))
            return newest
        with self._preparing:
            following = self._file(self._prepared or self._next_path())
            following.growing = True
            self._files.append(following)
            self._prepared = None
        self._new_names = True
        return self._files[-1]

    def _prepare_behind(self, newest: IndexFile) -> None:
        """Make the file that follows `newest`, in the thread of `BackgroundPreparer`."""
        with self._preparing:
            if self._files and self._files[-1] is newest and self._prepared is None:
                path = self._next_path()
                make_file(path, self._slots, self._capacity)
                self._prepared = path

    def _next_path(self) -> Path:
        now = time.time()
        name = time.strftime("%Y%m%d%H%M%S", time.localtime(now)) + f"{int(now * 1000) % 1000:03d}"
        # Made within the same millisecond, or after the clock was set back.
        if self._files and name <= self._files[-1].path.name:
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
            open_files=self._file_cache,
        )


def _entries(files: list[IndexFile], key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
    for file in files:
        yield None
        yield from file.find(key_hash, begin_ms, end_ms)
