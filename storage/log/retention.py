"""Which commit log files may go, when, and the thread that removes them.

The decision is a plain function of the time, the files' ages and the disk, so that it can be tested as a table. Its
execution has two halves: the store's owner lets go of files, which is quick and from then on they are not there; the
`Remover` deletes them from the disk and unmaps them, which may take long.
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
from raymq.storage.files.work_thread import begin

#: From this used share of the disk on, expired files go at any hour.
EARLY_RATIO: Final = 0.75
#: From this one on, the oldest files go whatever their age.
FORCED_RATIO: Final = 0.85
#: At most so many log files in one run.
FILES_A_RUN: Final = 10

_HOUR_MS: Final = 3_600_000
_log = logging.getLogger(__name__)


def _local_hour(now_ms: int) -> int:
    return time.localtime(now_ms / 1000).tm_hour


Reason = Literal["", "hour", "asked", "early", "forced"]


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk under a store, in bytes: what is used, and what may still be (root's reserve is neither)."""

    used: int
    free: int

    @classmethod
    def of(cls, path: Path) -> Disk:
        """As the kernel says now."""
        usage = shutil.disk_usage(path)
        return cls(usage.used, usage.free)

    @property
    def ratio(self) -> float:
        """The used share, as `df` shows it."""
        return self.used / max(1, self.used + self.free)


@dataclass(frozen=True, slots=True)
class Decision:
    """How many of the oldest log files go, and why; ("", 0) for none."""

    files: int = 0
    reason: Reason = ""


@dataclass(frozen=True, slots=True)
class Retention:
    """The rules; knows neither files nor clocks.

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
        disk: Disk,
        *,
        asked: bool = False,
        hour_of: Callable[[int], int] = _local_hour,
    ) -> Decision:
        """What to delete now: always the oldest files without a gap, never more than `FILES_A_RUN`.

        Args:
            newest_ms: of each file that may go at all, oldest first, when its newest message was stored. The newest
                file is not among them.
            asked: somebody wants expired files to go now, whatever the hour.
            hour_of: the local hour of a time.
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
            return Decision(min(forced, FILES_A_RUN), "forced")
        return Decision(min(expired, FILES_A_RUN), reason) if expired else Decision()

    def next_oldest_ms(self, now_ms: int, *, hour_of: Callable[[int], int] = _local_hour) -> int:
        """The store time before which files will have expired at the end of the next hour of deletion.

        It looks ahead by half of `hours` at most, so that what is stored anew stays for longer than that.
        """
        ahead = 1
        if self.delete_at_hour != "*":
            at = int(self.delete_at_hour)
            ahead = next(n for n in range(1, 50) if hour_of(now_ms + (n - 1) * _HOUR_MS) == at)
        return now_ms + int((min(ahead, self.hours / 2) - self.hours) * _HOUR_MS)


@dataclass(frozen=True, slots=True)
class Deleted:
    """What one run let go of: files of the log, of queues and of the index; and why."""

    log_files: int = 0
    queue_files: int = 0
    index_files: int = 0
    reason: Reason = ""


class Closable(Protocol):
    """An open file that goes with the one on disk."""

    def close(self) -> None:
        """Let go of it."""


#: A file, or a folder with all that is in it, to remove, and what is to be closed after that.
Removal = tuple[Path, Closable | None]


class Remover:
    """Removes files in the order in which they were given, in a thread of its own. Any thread may call it.

    The order is kept also when a removal fails (it is tried again before the next one), so that a crash never leaves
    a gap in the log: what was not removed is there at the next opening and goes then.
    """

    def __init__(self, closing: threading.Lock) -> None:
        """`closing` is held while a file is closed: others hold it while they work on open files."""
        self._closing = closing
        self._waiting: deque[Removal] = deque()
        #: What is being removed.
        self._current: Path | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def add(self, removals: Sequence[Removal]) -> None:
        """Remove these; returns at once."""
        if not removals:
            return
        with self._changed:
            self._waiting.extend(removals)
            if self._thread is None and not self._stopping:
                thread = threading.Thread(target=self._run, name="raymq-remove", daemon=True)
                with contextlib.suppress(StoreBusy):  # the next call tries again
                    begin(thread)
                    self._thread = thread

    def moved(self, folder: Path, to: Path) -> None:
        """What is in `folder` is in `to` now: from now on nothing is removed in the former, which may be made anew."""

        def now(path: Path) -> Path:
            return to / path.relative_to(folder) if folder in path.parents else path

        with self._changed:
            self._changed.wait_for(lambda: self._current is None or folder not in self._current.parents)
            self._waiting = deque((now(path), file) for path, file in self._waiting)

    def wait(self, timeout: float | None = None) -> bool:
        """Until nothing is being removed; False if that takes longer than `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout)

    def stop(self) -> None:
        """Wait until all is removed, but for what cannot be. May be called again."""
        with self._changed:
            self._stopping = True
        self.wait()
        for _, file in self._waiting:
            if file is not None:
                file.close()
        self._waiting.clear()

    def _run(self) -> None:
        """Until all is gone, or one cannot be removed: then the next `add` tries again."""
        going = True
        while going:
            with self._changed:
                path, file = self._waiting[0]
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
            except Exception:  # noqa: BLE001 - no memory, say: if the thread died, nothing would ever go again
                _log.exception("%s could not be removed; it is tried again", path)
            with self._changed:
                self._current = None
                self._changed.notify_all()
                if going:
                    self._waiting.popleft()
                going = going and bool(self._waiting)
                if not going:
                    self._thread = None
                    self._changed.notify_all()
