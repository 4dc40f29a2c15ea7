"""Decide which log files to delete and when, and delete them in a thread.

The decision is a plain function of the time, the files' ages and the disk, so that it can be tested as a table. The
execution has two halves: first the store's owner forgets the files, which is quick and makes them unavailable at once;
then the `FileRemover` deletes them from the disk and unmaps them, which may take long.
"""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

from raymq.storage.errors import StoreBusy, StoreError
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.worker_thread import begin

#: From this used share of the disk on, expired files are deleted at any hour.
EARLY_RATIO: Final = 0.75
#: From this used share on, the oldest files are deleted whatever their age.
FORCED_RATIO: Final = 0.85
#: The most log files that one run deletes.
MAX_FILES_PER_RUN: Final = 10

_HOUR_MS: Final = 3_600_000
_log = logging.getLogger(__name__)


def _local_hour(now_ms: int) -> int:
    return time.localtime(now_ms / 1000).tm_hour


Reason = Literal["", "hour", "asked", "early", "forced"]


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """The disk under a store, in bytes: what is used, and what is available.

    The space reserved for root counts as neither.
    """

    used: int
    free: int

    @classmethod
    def of(cls, path: Path) -> DiskUsage:
        """Return the present usage, as the kernel reports it."""
        usage = shutil.disk_usage(path)
        return cls(usage.used, usage.free)

    @property
    def ratio(self) -> float:
        """Return the used share, as `df` shows it."""
        return self.used / max(1, self.used + self.free)


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """How many of the oldest log files to delete, and why; ("", 0) for none."""

    files: int = 0
    reason: Reason = ""


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention rules, without access to files or clocks.

    Attributes:
        hours: age from which on a log file has expired: that of its newest message.
        delete_at_hour: "00" to "23" of the local day, or "*" for every hour.
    """

    hours: float
    delete_at_hour: str

    def decide(
        self,
        newest_ms: Sequence[int],
        file_bytes: int,
        now_ms: int,
        disk: DiskUsage,
        *,
        asked: bool = False,
        hour_of: Callable[[int], int] = _local_hour,
    ) -> RetentionDecision:
        """Return how many of the oldest files to delete now, at most `MAX_FILES_PER_RUN`.

        The deleted files are always the oldest ones, without a gap.

        Args:
            newest_ms: the store time of the newest message of each file that may be deleted, oldest first. The newest
                file is not included.
            asked: a caller requests that expired files are deleted now, whatever the hour.
            hour_of: a function that returns the local hour of a time.
        """
        reason: Reason = ""
        if asked:
            reason = "asked"
        elif self.delete_at_hour == "*" or hour_of(now_ms) == int(self.delete_at_hour):
            reason = "hour"
        elif disk.ratio >= EARLY_RATIO:
            reason = "early"
        expired = 0
        if reason:
            oldest_kept_ms = now_ms - self.hours * _HOUR_MS
            while expired < len(newest_ms) and newest_ms[expired] < oldest_kept_ms:
                expired += 1
        forced = 0
        if disk.ratio >= FORCED_RATIO:
            too_much = disk.used - FORCED_RATIO * (disk.used + disk.free)
            forced = min(len(newest_ms), max(1, math.ceil(too_much / file_bytes)))
        if forced > expired:
            return RetentionDecision(min(forced, MAX_FILES_PER_RUN), "forced")
        return RetentionDecision(min(expired, MAX_FILES_PER_RUN), reason) if expired else RetentionDecision()

    def next_oldest_ms(self, now_ms: int, *, hour_of: Callable[[int], int] = _local_hour) -> int:
        """Return the store time before which files expire by the next deletion hour's end.

        It looks ahead by at most half of `hours`, so that new messages are kept for longer than that.
        """
        ahead = 1
        if self.delete_at_hour != "*":
            at = int(self.delete_at_hour)
            ahead = next(n for n in range(1, 50) if hour_of(now_ms + (n - 1) * _HOUR_MS) == at)
        return now_ms + int((min(ahead, self.hours / 2) - self.hours) * _HOUR_MS)


@dataclass(frozen=True, slots=True)
class RetentionResult:
    """How many files of log, queues and index one run released, and why."""

    log_files: int = 0
    queue_files: int = 0
    index_files: int = 0
    reason: Reason = ""


class SupportsClose(Protocol):
    """An open file that is closed after its file on disk is removed."""

    def close(self) -> None:
        """Close the open file."""


#: A file or folder to remove, and the open file to close after that.
Removal = tuple[Path, SupportsClose | None]


class FileRemover:
    """Remove files in the order given, and then folders, on a thread.

    Any thread may call it. The order is kept also when a removal fails (it is tried again before the next one), so that
    a crash never leaves a gap in the log: files that were not removed still exist at the next opening, and are removed
    then.
    """

    def __init__(self, closing: threading.Lock) -> None:
        """Set up the remover without a thread; `closing` is held while a file is closed.

        Other threads hold `closing` while they work on open files.
        """
        self._closing = closing
        self._waiting: deque[Removal] = deque()
        #: Folders of deleted topics; they wait apart, because `moved` looks at each removal that waits.
        self._folders: deque[Removal] = deque()
        #: The path that is being removed now.
        self._current: Path | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def add(self, removals: Sequence[Removal]) -> None:
        """Queue these files for removal; returns at once."""
        if removals:
            with self._changed:
                self._waiting.extend(removals)
                self._begin()

    def moved(self, folder: Path, to: Path) -> None:
        """Queue the moved folder `to` for removal, and redirect removals in `folder`.

        From then on nothing is removed in `folder`, which may be recreated. The call waits for a removal that is under
        way in it.
        """

        def now(path: Path) -> Path:
            return to / path.relative_to(folder) if folder in path.parents else path

        with self._changed:
            self._changed.wait_for(lambda: self._current is None or folder not in self._current.parents)
            redirected = [(now(path), file) for path, file in self._waiting]
            self._waiting.clear()  # the same object: the thread removes its first entry
            self._waiting.extend(redirected)
            self._folders.append((to, None))
            self._begin()

    def _begin(self) -> None:
        """Start the thread if there is none; with `_changed` held."""
        if self._thread is None and not self._stopping:
            thread = threading.Thread(target=self._run, name="raymq-remove", daemon=True)
            with contextlib.suppress(StoreBusy):  # the next call tries again
                begin(thread)
                self._thread = thread

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no removal is under way; return False after `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout)

    def stop(self) -> None:
        """Wait until all files are removed that can be; may be called again."""
        with self._changed:
            self._stopping = True
        self.wait()
        for _, file in self._waiting:
            if file is not None:
                file.close()
        self._waiting.clear()
        self._folders.clear()

    def _run(self) -> None:
        """Remove files until none is left, or until one cannot be removed.

        The next `add` tries that one again.
        """
        going = True
        while going:
            with self._changed:
                queue = self._waiting or self._folders
                path, file = queue[0]
                self._current = path
            going = False
            try:
                failpoint("retention.before_remove")
                fileutil.remove_tree(path) if path.is_dir() else fileutil.remove(path)
                failpoint("retention.before_close")
                if file is not None:
                    with self._closing:
                        file.close()
                going = True
            except (StoreError, OSError):
                pass
            except Exception:  # noqa: BLE001 - for example no memory: without this thread no file is removed any more
                _log.exception("%s could not be removed; the removal is tried again", path)
            with self._changed:
                self._current = None
                self._changed.notify_all()
                if going:
                    queue.popleft()
                going = going and bool(self._waiting or self._folders)
                if not going:
                    self._thread = None
                    self._changed.notify_all()
