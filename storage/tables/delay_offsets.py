"""The offsets of delay levels: up to which message each level's queue has been delivered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import ClassVar, Final

from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.journal.journaled_table import Fields, JournaledTable
from raymq.storage.journal.recovery_bounds import UNBOUNDED, RecoveryBounds

#: In place of a level: the event holds the log's end for all levels.
_ALL: Final = 0


def _all_flushed() -> int:
    return UNBOUNDED.log_end


class DelayOffsets(JournaledTable):
    """The offset in each delay level's queue of the next message to deliver.

    A commit refers to copies in the log. If the log loses them, the commit is void, and the messages are delivered
    again. So a start has to know the commits of copies that may not have been on disk: until the log is flushed up to
    a commit's `log_end`, the commit is `_unflushed`, and snapshots hold it as a commit and not as a settled offset.

    Events: [level, offset, log end] for a commit, [level, offset, log end, 1] for one behind lost events, [level,
    offset] for a settled offset, [level] to remove it, [0, log end] for the settled log end.

    Used by the store's thread.

    Attributes:
        flushed_offset: returns the physical offset up to which the log is on disk.
    """

    NUMBER: ClassVar = 5

    def __init__(self) -> None:
        self.flushed_offset: Callable[[], int] = _all_flushed
        self._offsets: dict[int, int] = {}
        self._log_end = 0
        #: Commits that are not settled, oldest first; the last value: whether its log end counts.
        self._unflushed: deque[tuple[int, int, int, bool]] = deque()
        self._settled: dict[int, int] = {}
        self._settled_log_end = 0
        #: Whether a start has not clamped the commits yet: then none of them is settled.
        self._is_loading = True

    def commit(self, level: int, next_offset: int, log_end: int) -> None:
        """Set the level's next offset; it survives a process crash when this returns.

        Args:
            log_end: the current end of the log: all copies that were delivered lie before it.

        Raises:
            StoreFull, StoreFailed: nothing has changed.
        """
        if self.get(level) != next_offset:
            self.record(level, next_offset, log_end)

    def get(self, level: int) -> int | None:
        """Return the next offset, or None if the level has no progress yet."""
        return self._offsets.get(level)

    def advance_log_end(self, log_end: int) -> None:
        """Record that every copy delivered before `log_end` is committed, for all levels with an offset."""
        if self._offsets and log_end != self.log_end:
            level, offset = next(iter(self._offsets.items()))
            self.record(level, offset, log_end)

    @property
    def log_end(self) -> int:
        """Return the log's end at the newest commit.

        Copies after it may have been delivered but not committed.
        """
        return self._log_end

    def settled(self) -> tuple[dict[int, int], int]:
        """Return the offsets that survive a loss of power, and their log end."""
        self._settle()
        return dict(self._settled), self._settled_log_end

    def raise_offsets(self, offsets: dict[int, int]) -> Iterator[Fields]:
        """Return the events that raise lower offsets to `offsets`, and add missing ones."""
        for level, offset in offsets.items():
            if offset > self._offsets.get(level, -1):
                yield level, offset

    def apply(self, fields: Fields) -> None:
        """Apply an event; see the class."""
        self._apply(fields, counts=True)

    def apply_after_loss(self, fields: Fields) -> None:
        """Apply an event; a lost commit of another level may lie before its log end."""
        self._apply(fields, counts=False)

    def _apply(self, fields: Fields, *, counts: bool) -> None:
        level, *rest = map(int, fields)
        if not rest:
            self._offsets.pop(level, None)
            self._settled.pop(level, None)
            self._drop_commits(level)
        elif level == _ALL:
            (self._log_end,) = rest
            self._settled_log_end = self._log_end
        elif len(rest) == 1:
            self._offsets[level] = self._settled[level] = rest[0]
            self._drop_commits(level)
        else:
            offset, log_end, *is_after_loss = rest
            counts = counts and not is_after_loss
            self._offsets[level] = offset
            if counts:
                self._log_end = log_end
            self._unflushed.append((level, offset, log_end, counts))
            self._settle()

    def end_loading(self) -> None:
        """Begin to settle commits of a replica, whose log may grow back."""
        self._is_loading = False

    def _drop_commits(self, level: int) -> None:
        if self._unflushed:
            self._unflushed = deque(each for each in self._unflushed if each[0] != level)

    def _settle(self) -> None:
        """Settle the commits whose copies are on disk."""
        if self._is_loading:
            return
        flushed = self.flushed_offset()
        while self._unflushed and self._unflushed[0][2] <= flushed:
            level, offset, log_end, counts = self._unflushed.popleft()
            self._settled[level] = offset
            if counts:
                self._settled_log_end = log_end

    def snapshot(self) -> Iterator[Fields]:
        """Return the settled offsets, and the commits that are not settled."""
        # Copied before the settled offsets: a commit that is settled in between is then in both.
        unflushed = tuple(self._unflushed)
        yield _ALL, self._settled_log_end
        yield from self._settled.copy().items()
        for level, offset, log_end, counts in unflushed:
            yield (level, offset, log_end) if counts else (level, offset, log_end, 1)

    def clamp(self, bounds: RecoveryBounds) -> Iterator[Fields]:
        """Drop commits behind the log's end, and limit offsets to the queues' maxima."""
        before, before_end = dict(self._offsets), self._log_end
        offsets, log_end = dict(self._settled), self._settled_log_end
        if not bounds.has(log_end):
            # The offsets came with a copy of another broker's journal; recovery searches all of the log for deliveries.
            offsets, log_end = {}, 0
        for level, offset, end, counts in self._unflushed:
            if bounds.has(end):
                offsets[level] = offset
                log_end = end if counts else log_end
        offsets = {
            level: min(offset, bounds.max_offset(SCHEDULE_TOPIC, level - 1)) for level, offset in offsets.items()
        }
        log_end = min(log_end, bounds.log_end)
        # Recovery has flushed the log, so all commits that are left are safe.
        self._is_loading = False
        self._unflushed.clear()
        self._offsets, self._settled = dict(offsets), dict(offsets)
        self._log_end = self._settled_log_end = log_end
        if (offsets, log_end) != (before, before_end):
            yield _ALL, log_end
            yield from offsets.items()
            yield from ((level,) for level in before.keys() - offsets.keys())
