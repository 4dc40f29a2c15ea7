"""Free disk space before a store is opened on a full disk.

Opening a store on a full disk raises StoreFull, and retention, which would free space, runs only in an open store. So
before the opening the same is done that a running store would do on such a disk. The steps run in this order, and the
opening is tried again after each step:

1. Remove files that are no longer read: temporary files that never replaced their target (`*.tmp`), queues of deleted
   topics, and copies of damaged bytes (only those that recovery makes; what a repair has set aside stays).
2. Free the blocks after the log's last byte, which were allocated for the next appends.
3. Remove files of queues and index whose messages are all gone from the log, by the rule of the running store.
4. If the caller passes retention rules: remove the oldest log files that these rules delete (`Retention.decide`), as
   far as the last checkpoint records log, queues and index as on disk, and only if no message in them is still to be
   delivered or committed (`oldest_delayed_offset`).

All this happens under the directory's lock, oldest file first, and each removal is on disk before the next one: a crash
in between leaves a log without a gap. A directory without a checkpoint of RayMQ loses no log file.
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
from raymq.storage.files.disk_health import DiskHealth
from raymq.storage.files.disk_reserve import DiskReserve
from raymq.storage.files.mapped_file_queue import files_of
from raymq.storage.log.checkpoint import CheckpointState
from raymq.storage.log.commit_log import CommitLog
from raymq.storage.log.damaged_copies import list_damaged_copies
from raymq.storage.log.dispatch import Dispatcher
from raymq.storage.log.key_index import KeyIndex
from raymq.storage.log.retention import MAX_FILES_PER_RUN, DiskUsage, Retention
from raymq.storage.oldest_delayed import oldest_delayed_offset
from raymq.storage.records import record as layout
from raymq.storage.store_paths import StorePaths, take_lock, with_existing_sizes
from raymq.storage.tables.delay_level_history import DelayLevelHistory

_PAGE: Final = 4096
_REMEDY: Final = "free a few MiB of that disk; a broker then starts by itself"
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


def releasable_disk_reserve(directory: Path) -> AbstractContextManager[None]:
    """Let this thread's writes in a store directory use the disk reserve if needed.

    The returned context manager frees the reserve file when a write of this thread below `directory` finds no space.
    """
    return DiskReserve(StorePaths(directory).disk_reserve).releasable_for(directory)


def open_with_cleanup(
    directory: Path,
    config: StoreConfig,
    now_ms: Callable[[], int],
    start: Callable[[], _T],
    retention: Callable[[], Retention | None],
) -> _T:
    """Call `start`, which opens the directory's store, and return its result.

    The disk reserve is available to `start`. If `start` finds no space, removable files are removed and it is called
    again.

    Args:
        start: opens the store; if it raises, it has closed again whatever it had opened.
        retention: returns the rules by which log files may be removed; None: no log file may be removed. It is called
            only if nothing else can be removed.

    Raises:
        StoreFull: there is no space and nothing may be removed.
        Exception: any other error of `start`.
    """
    maker = EmergencyCleaner(directory, config, now_ms, retention)
    while True:
        try:
            with releasable_disk_reserve(directory):
                return start()
        except StoreBusy:
            raise
        except StoreFull as full:
            if maker.step():
                continue
            if full.remedy == _REMEDY:
                raise
            disk = DiskUsage.of(_nearest(directory))
            problem = f"the disk of {directory} is {disk.ratio:.1%} full, {disk.free} bytes are free: too few to start"
            raise StoreFull(f"{problem}, and no file there may be removed ({full.args[0]})", remedy=_REMEDY) from full


class EmergencyCleaner:
    """Removes files for one start; see the module docstring.

    It belongs to one thread, and no process may have the store open.
    """

    def __init__(
        self,
        directory: Path,
        config: StoreConfig,
        now_ms: Callable[[], int],
        retention: Callable[[], Retention | None] = lambda: None,
    ) -> None:
        """Prepare the steps; the arguments are those of `open_with_cleanup`."""
        self._retention = retention
        self._paths = StorePaths(directory)
        self._asked = config
        self._now_ms = now_ms
        # Each step runs once: a failed opening may leave new files of the same kind, and retries must end.
        self._steps = deque((self._rubbish, self._blocks_ahead, self._surplus, self._old_log_files))

    def step(self) -> bool:
        """Run the next step that removes something, log it, and return whether there was one.

        Raises:
            StoreLocked: another process has the directory open.
            StoreCorrupt, StoreFailed: the directory cannot be read.
        """
        try:
            lock = take_lock(self._paths)
        except StoreFull:  # there is no room even for the lock file, so there is no store to clean
            return False
        try:
            self._state = CheckpointState.load(self._paths.state)
            self._config = with_existing_sizes(self._asked, self._paths, self._state)
            while self._steps:
                if self._steps.popleft()():
                    return True
            return False
        finally:
            lock.release()

    def _rubbish(self) -> bool:
        root, ours = self._paths.root, self._paths.root / "raymq"
        found = [*_successors_in(root), *_successors_in(self._paths.config), *_successors_in(ours, below=True)]
        found = [path for path in found if path.stat().st_blocks]  # empty ones, left by failed attempts, free nothing
        self._remove(found, "a temporary file of an interrupted write")
        deleted = fileutil.paths_in(self._paths.deleted_queues)
        self._remove(deleted, "its topic was deleted")
        found += deleted
        copies = list_damaged_copies(self._paths.damaged)
        self._remove(copies, "a copy of damaged bytes")
        return bool(found or copies)

    def _blocks_ahead(self) -> bool:
        """Free the blocks after the log's last byte; the content there stays zeros.

        Only the last file is shortened: a crash may leave it shorter than the others. So prepared files that are still
        empty are removed first, as recovery would remove them.
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
                break  # the checkpoint says that it had records: recovery has to report their loss
            fileutil.remove(path)
            freed += status.st_blocks * 512
        if freed > 0:
            _log.warning("%s: the disk is full: %d bytes behind the log's end are free again", self._paths.root, freed)
        return freed > 0

    def _surplus(self) -> bool:
        """Remove the files of queues and index that lie entirely below the log's minimum.

        Do nothing if a power loss may have damaged these files.
        """
        state, config = self._state, self._config
        if state is None or not (state.boot == boot_id() != "" or not self._paths.abort.exists()):
            return False
        levels = DelayLevelHistory()
        levels.use(config.delay_levels)
        try:
            index = KeyIndex(self._paths.index, config.index_slots, config.index_entries, writable=False)
            dispatcher = Dispatcher(
                self._paths.consume_queue,
                self._paths.deleted_queues,
                config.consume_queue_file_entries,
                index,
                levels,
                writable=False,
            )
        except StoreCorrupt:  # opening the store rebuilds it
            return False
        try:
            log_min = next((int(path.name) for path in files_of(self._paths.commit_log)), 0)
            removed = [*dispatcher.follow(log_min, max(1, len(dispatcher.queues))), *index.detach_before(log_min)]
            for _, file in removed:
                if file is not None:
                    file.close()
            self._remove([path for path, _ in removed], "the log no longer has its messages")
            return bool(removed)
        finally:
            dispatcher.close()

    def _old_log_files(self) -> bool:
        state, config, rules = self._state, self._config, self._retention()
        if state is None or rules is None:
            return False
        host, port = split_host(config.store_host)
        log = CommitLog(
            self._paths.commit_log,
            config.commitlog_file_bytes,
            layout.pack_host_bytes(host, port),
            DiskHealth(self._paths.healthy),
            writable=False,
            whole_to=state.dispatched_to,
        )
        try:
            # Data after the last checkpoint counts as not on disk: `expirable` must not return its files.
            log.set_end(min(state.dispatched_to, log.files.end), 0)
            files = log.expirable(MAX_FILES_PER_RUN)
            disk = DiskUsage.of(self._paths.root)
            decision = rules.decide([newest for _, newest in files], config.commitlog_file_bytes, self._now_ms(), disk)
            if not decision.files:
                return False
            end = files[decision.files - 1][0]
            end = oldest_delayed_offset(self._paths, config, state, log_min=log.min_offset, before=end)
            removed = log.files.detach_before(end)
            for _, file in removed:
                if file is not None:
                    file.close()
            for path, _ in removed:
                failpoint("cleanup.before_remove")
                self._remove([path], f"retention, {decision.reason}")
            if removed:
                self._steps.extend((self._surplus, self._old_log_files))
            return bool(removed)
        finally:
            log.close()

    @staticmethod
    def _remove(paths: list[Path], why: str) -> None:
        for path in paths:
            _log.warning("%s is removed because the disk is too full to start: %s", path, why)
            fileutil.remove_tree(path) if path.is_dir() else fileutil.remove(path)


def _nearest(directory: Path) -> Path:
    """Return the directory, or its nearest parent that exists."""
    return next((each for each in (directory, *directory.parents) if each.is_dir()), Path("/"))


def _successors_in(folder: Path, *, below: bool = False) -> list[Path]:
    """Return the temporary files in a folder that never replaced their target.

    With `below`, include those in its subfolders.
    """
    found: list[Path] = []
    for entry in fileutil.entries_of(folder):
        path = folder / entry.name
        if entry.is_dir(follow_symlinks=False):
            found += _successors_in(path, below=True) if below else []
        elif path.suffix == ".tmp":
            found.append(path)
    return found
