"""Room for a start whose disk has none: what a directory can do without is removed before it is opened.

Whoever opens a store on a full disk meets StoreFull, and retention, which would make room, runs only in a store that is
open. So the start does what a running store would do on such a disk, in this order, and tries again after each step:

1. What nobody reads: files that were to take another one's place (`*.tmp`), queues of deleted topics, swept staged
   writes, copies of damaged bytes (those that recovery makes; what a repair has set aside stays).
2. Blocks behind the log's last byte, allocated for what was to be appended next.
3. Files of queues and index all of whose messages are gone from the log, by the rule of the running store.
4. Where the caller has said by which rules: the oldest log files, as retention would have them go (`Retention.decide`),
   as far as the last checkpoint says that log, queues and index have them on disk, and no message in them waits for its
   time (`waiting_places`).

All is done under the directory's lock, oldest first, and each removal is on disk before the next one: a death in
between leaves a log without a gap. A directory without a checkpoint of ours loses no log file.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, TypeVar

from raymq.storage.clock import boot_id
from raymq.storage.config import StoreConfig, split_host
from raymq.storage.errors import StoreBusy, StoreCorrupt, StoreFull
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil, holes
from raymq.storage.files.ballast import Ballast
from raymq.storage.files.health import Health
from raymq.storage.files.mapped_file_queue import files_of
from raymq.storage.log.checkpoint import State
from raymq.storage.log.commit_log import CommitLog
from raymq.storage.log.damaged import copies_in
from raymq.storage.log.delay_tables import DelayTables
from raymq.storage.log.dispatch import Dispatcher
from raymq.storage.log.key_index import KeyIndex
from raymq.storage.log.retention import FILES_A_RUN, Disk, Retention
from raymq.storage.paths import Paths, fitted, take_lock
from raymq.storage.records import record as layout
from raymq.storage.tables.staging import swept_in
from raymq.storage.waiting_places import first_waiting

_PAGE: Final = 4096
_REMEDY: Final = "free a few MiB of that disk; a broker's start is tried again by itself"
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


def ballast_at_hand(directory: Path) -> AbstractContextManager[None]:
    """Within it what this thread writes in a store's directory, and finds no room for, has that of the ballast."""
    return Ballast(Paths(directory).ballast).at_hand(directory)


def open_with_room(
    directory: Path,
    config: StoreConfig,
    now_ms: Callable[[], int],
    start: Callable[[], _T],
    retention: Retention | None,
) -> _T:
    """What `start` returns, which opens the store of that directory; it has the ballast at hand.

    Where it finds no room, what can go goes, and it is called again.

    Args:
        start: whatever it has opened is closed again when it raises.
        retention: by which rules log files may go; None: none may.

    Raises:
        StoreFull: there is no room, and nothing that may go. Whatever else `start` raises.
    """
    maker = RoomMaker(directory, config, now_ms, retention)
    while True:
        try:
            with ballast_at_hand(directory):
                return start()
        except StoreBusy:
            raise
        except StoreFull as full:
            if maker.step():
                continue
            if full.remedy == _REMEDY:
                raise
            disk = Disk.of(_nearest(directory))
            told = f"the disk of {directory} is {disk.ratio:.1%} full, {disk.free} bytes are free: no room for a start"
            raise StoreFull(f"{told}, and nothing there may be removed ({full.args[0]})", remedy=_REMEDY) from full


class RoomMaker:
    """What one start removes; see the module. One thread, while nobody has the store open."""

    def __init__(
        self, directory: Path, config: StoreConfig, now_ms: Callable[[], int], retention: Retention | None = None
    ) -> None:
        """Arguments as those of `open_with_room`."""
        self._retention = retention
        self._paths = Paths(directory)
        self._asked = config
        self._now_ms = now_ms
        # Each is done once: an attempt that fails may leave some of the same.
        self._steps = deque((self._rubbish, self._blocks_ahead, self._surplus, self._old_log_files))

    def step(self) -> bool:
        """Remove the next things, and log them; False: there are none that may go.

        Raises:
            StoreLocked: another process has the directory. StoreCorrupt, StoreFailed: it cannot be read.
        """
        try:
            lock = take_lock(self._paths)
        except StoreFull:  # it is not even there
            return False
        try:
            self._state = State.load(self._paths.state)
            self._config = fitted(self._asked, self._paths, self._state)
            while self._steps:
                if self._steps.popleft()():
                    return True
            return False
        finally:
            lock.release()

    def _rubbish(self) -> bool:
        root, ours = self._paths.root, self._paths.root / "raymq"
        found = [*_successors_in(root), *_successors_in(self._paths.config), *_successors_in(ours, below=True)]
        found = [path for path in found if path.stat().st_blocks]  # an attempt that has failed leaves empty ones
        self._remove(found, "it never took its place")
        deleted = fileutil.paths_in(self._paths.deleted_queues)
        self._remove(deleted, "its topic was deleted")
        found += deleted
        swept, copies = swept_in(self._paths.staged), copies_in(self._paths.damaged)
        self._remove(swept, "nobody will commit it")
        self._remove(copies, "a copy of damaged bytes")
        return bool(found or swept or copies)

    def _blocks_ahead(self) -> bool:
        """Give back the blocks behind the log's last byte: its content stays, zeros.

        A file is cut only while it is the last one: a death may leave that one shorter. So files that were prepared and
        are empty go first, as recovery has them go.
        """
        known_end = 0 if self._state is None else self._state.dispatched_to
        files, freed = files_of(self._paths.commit_log), 0
        while files:
            path = files.pop()
            fd = fileutil.open_file(path, os.O_RDWR)
            try:
                status = os.fstat(fd)
                used = holes.last_data(fd, 0, status.st_size, path)
                if used or not files:
                    end = min(status.st_size, -(-used // _PAGE) * _PAGE)
                    fileutil.zero_from(fd, end, status.st_size, path)
                    freed += (status.st_blocks - os.fstat(fd).st_blocks) * 512
                    break
            finally:
                fileutil.close(fd)
            if int(path.name) < known_end:
                break  # it had records: what became of them, recovery tells
            fileutil.remove(path)
            freed += status.st_blocks * 512
        if freed > 0:
            _log.warning("%s: the disk is full: %d bytes behind the log's end are free again", self._paths.root, freed)
        return freed > 0

    def _surplus(self) -> bool:
        """Remove what of queues and index lies below the log; not where a loss of power may have damaged them."""
        state, config = self._state, self._config
        if state is None or not (state.boot == boot_id() != "" or not self._paths.abort.exists()):
            return False
        try:
            index = KeyIndex(self._paths.index, config.index_slots, config.index_entries, writable=False)
            dispatcher = Dispatcher(
                self._paths.consume_queue,
                self._paths.deleted_queues,
                config.consume_queue_file_entries,
                index,
                DelayTables(self._paths.delay_levels, config.delay_levels),
                writable=False,
            )
        except StoreCorrupt:  # the opening makes it anew
            return False
        try:
            log_min = next((int(path.name) for path in files_of(self._paths.commit_log)), 0)
            gone = [*dispatcher.follow(log_min, max(1, len(dispatcher.queues))), *index.detach_before(log_min)]
            for _, file in gone:
                if file is not None:
                    file.close()
            self._remove([path for path, _ in gone], "the log has none of its messages any more")
            return bool(gone)
        finally:
            dispatcher.close()

    def _old_log_files(self) -> bool:
        state, config, rules = self._state, self._config, self._retention
        if state is None or rules is None:
            return False
        host, port = split_host(config.store_host)
        log = CommitLog(
            self._paths.commit_log,
            config.commitlog_file_bytes,
            layout.pack_host_bytes(host, port),
            Health(self._paths.healthy),
            writable=False,
            whole_to=state.dispatched_to,
        )
        try:
            # What is behind the last checkpoint counts as not on disk: `expirable` leaves it.
            log.set_end(min(state.dispatched_to, log.files.end), 0)
            files = log.expirable(FILES_A_RUN)
            disk = Disk.of(self._paths.root)
            decision = rules.decide([newest for _, newest in files], config.commitlog_file_bytes, self._now_ms(), disk)
            if not decision.files:
                return False
            end = files[decision.files - 1][0]
            end = first_waiting(self._paths, config, state, log_min=log.min_offset, before=end)
            gone = log.files.detach_before(end)
            for _, file in gone:
                if file is not None:
                    file.close()
            for path, _ in gone:
                failpoint("room.before_remove")
                self._remove([path], f"retention, {decision.reason}")
            if gone:
                self._steps.extend((self._surplus, self._old_log_files))
            return bool(gone)
        finally:
            log.close()

    @staticmethod
    def _remove(paths: list[Path], why: str) -> None:
        for path in paths:
            _log.warning("%s is removed, for the disk has no room for a start: %s", path, why)
            fileutil.remove_tree(path) if path.is_dir() else fileutil.remove(path)


def _nearest(directory: Path) -> Path:
    """The directory, or the one above it that is there."""
    return next((each for each in (directory, *directory.parents) if each.is_dir()), Path("/"))


def _successors_in(folder: Path, *, below: bool = False) -> list[Path]:
    """The files in a folder, and in those below it, that never took the place of another one."""
    found: list[Path] = []
    for entry in fileutil.entries_of(folder):
        path = folder / entry.name
        if entry.is_dir(follow_symlinks=False):
            found += _successors_in(path, below=True) if below else []
        elif path.suffix == ".tmp":
            found.append(path)
    return found
