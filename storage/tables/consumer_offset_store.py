"""The committed offsets of consumer groups and delay levels, which survive a process crash.

A commit appends one frame to `raymq/progress.journal` (see `journal`). The journal is folded into RocketMQ's
config/consumerOffset.json and config/delayOffset.json when it has grown, at opening and at closing.

A RocketMQ broker does not read the journal. If a RocketMQ broker used the directory after RayMQ was killed, and rewrote
these files, the frames are older than the files. Then a frame never moves an offset back.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.errors import StoreError
from raymq.storage.failpoints import failpoint
from raymq.storage.files import json_file
from raymq.storage.files.worker_thread import begin
from raymq.storage.tables.journal import Journal, ignore_failure
from raymq.storage.tables.offset_files import (
    parse_consumer_offsets,
    parse_delay_offsets,
    read_consumer_offsets,
    read_delay_offsets,
)
from raymq.storage.tables.recovery_bounds import UNBOUNDED, RecoveryBounds

_FOLD_BYTES: Final = 4 << 20
_CONSUMER: Final = "c"
_CONSUMER_GONE: Final = "g"
_TOPIC_GONE: Final = "t"
_RESET: Final = "r"
_HEEDED: Final = "h"
_DELAY: Final = "d"
#: The first frame of a new journal: the journal contains all deletions of topics since the beginning.
_TELLS_DELETIONS: Final = "k"


class ConsumerOffsetStore:
    """The offsets of groups and delay levels in one journal.

    `consumer_offsets` and `delay_offsets` are the interfaces to the two kinds of offsets.
    """

    def __init__(
        self,
        config: Path,
        journal: Path,
        *,
        writable: bool,
        on_failure: Callable[[StoreError], None] = ignore_failure,
        recovery_bounds: RecoveryBounds = UNBOUNDED,
        flushed_offset: Callable[[], int] = lambda: UNBOUNDED.log_end,
    ) -> None:
        """Load the JSON files and replay the journal over them.

        Entries about parts of the log that no longer exist are skipped.

        Args:
            on_failure: as in `Journal`.
            recovery_bounds: what the log has after recovery.
            flushed_offset: returns the physical offset up to which the log is on disk.

        Raises:
            StoreCorrupt: a JSON file and its .bak are unreadable.
        """
        self._consumer_path = config / "consumerOffset.json"
        self._delay_path = config / "delayOffset.json"
        consumers, delays = read_consumer_offsets(self._consumer_path), read_delay_offsets(self._delay_path)
        self._version, self._delay_version = consumers.version, delays.version
        self.consumers, self.delays = consumers.offsets, delays.offsets
        #: The queues with a pending reset: the group has not yet moved to the offset that was set.
        self.resets = {each for each in consumers.resets if each[2] in self.consumers.get(each[0], {}).get(each[1], ())}
        #: Where the log ended at each deletion of a topic whose offsets were removed; None: it was not recorded.
        self.forgotten = consumers.forgotten
        #: The same for deletions that the journal does not contain yet. No file may list them as applied, because the
        #: frames on disk still contain the groups' offsets in the topic.
        self._pending: dict[str, int] = {}
        self.log_end = delays.log_end
        self._fold_at = _FOLD_BYTES
        self._folding: threading.Thread | None = None
        #: The content that was last written to the file of the consumers' offsets.
        self._last_saved: bytes | None = None
        self._remains = recovery_bounds
        self._flushed_offset = flushed_offset
        #: Commits of levels that were made when the log reached further than it is on disk, oldest first.
        self._unflushed: deque[tuple[int, int, int]] = deque()
        self._flushed_delays, self._flushed_log_end = dict(self.delays), self.log_end
        self.journal = Journal(journal, writable=writable, on_failure=on_failure)
        self.consumer_offsets = ConsumerOffsets(self)
        self.delay_offsets = DelayOffsets(self)
        try:
            self._recover(
                writable=writable, is_new=not consumers.is_there, foreign=(consumers.is_foreign, delays.is_foreign)
            )
        except BaseException:
            self.journal.close()
            raise

    def _recover(self, *, writable: bool, is_new: bool, foreign: tuple[bool, bool]) -> None:
        """Replay the journal and clamp the result to what the log has.

        Args:
            foreign: whether RocketMQ wrote the files of the two kinds, consumers and delay levels.
        """
        if self.journal.empty and is_new:
            self.forgotten = {}
            self.journal.set_preamble((_TELLS_DELETIONS,))
        self._replay(self.journal.entries, foreign)
        # Each frame holds the resulting state, whatever the frames before it contain, so frames after damage are valid
        # too. But a log end applies to all levels, and the damaged frames may contain commits of other levels before
        # it.
        log_end = self.log_end
        self._replay(self.journal.behind, foreign)
        self.log_end = min(self.log_end, log_end)
        clamped = self._forget_deleted(writable=writable) | self._clamp()
        if writable and (clamped or not self.journal.empty):
            self.fold()

    def _replay(self, entries: Iterable[tuple[Any, ...]], foreign: tuple[bool, bool]) -> None:
        for entry in entries:
            is_delay = entry[0] == _DELAY
            if is_delay and not self._remains.has(entry[-1]):
                continue
            if not foreign[is_delay] or self._is_newer(entry):
                self.apply(entry)

    def _is_newer(self, entry: tuple[Any, ...]) -> bool:
        """Return True if a commit is ahead of its queue's or level's known offset.

        Frames of other kinds return False.
        """
        kind, *rest = entry
        if kind == _DELAY:
            return bool(rest[1] > self.delays.get(rest[0], -1))
        if kind != _CONSUMER:
            return False
        group, topic, queue_id, offset = rest
        return bool(offset > self.consumers.get(group, {}).get(topic, {}).get(queue_id, -1))

    def _forget_deleted(self, *, writable: bool) -> bool:
        """Remove offsets in deleted topics whose deletion the journal lacks; return True on any change.

        The deletions are appended to the journal first: if the next fold is interrupted, the frames are replayed after
        loading a file that lists these deletions as applied.
        """
        deleted, forgotten = self._remains.deleted_topics, self.forgotten
        unheeded = self._remains.deleted_later(forgotten)
        has = {topic for topics in self.consumers.values() for topic in topics} | {each[1] for each in self.resets}
        for topic in unheeded:
            if writable and topic in has:
                self.journal.append((_TOPIC_GONE, topic, deleted[topic]))
            self._forget_topic(topic)
        self.forgotten = dict(deleted)
        return bool(unheeded) or self.forgotten != forgotten

    def _clamp(self) -> bool:
        """Clamp all offsets to what the log has; return True on any change.

        See `recovery_bounds`.
        """
        clamped = False
        for topics in self.consumers.values():
            for topic, offsets in topics.items():
                for queue_id, offset in offsets.items():
                    if offset > (limit := self._remains.max_offset(topic, queue_id)):
                        offsets[queue_id] = limit
                        clamped = True
        for level, offset in self.delays.items():
            if offset > (limit := self._remains.max_offset(SCHEDULE_TOPIC, level - 1)):
                self.delays[level] = limit
                clamped = True
        if not self._remains.has(self.log_end):
            self.log_end = self._remains.log_end
            clamped = True
        # Recovery has flushed the log, so all commits are safe.
        self._unflushed.clear()
        self._flushed_delays, self._flushed_log_end = dict(self.delays), self.log_end
        return clamped

    def commit(self, entry: tuple[Any, ...]) -> None:
        """Write an entry to the journal, then apply it.

        Raises:
            as `Journal.append`: nothing was committed. StoreFailed also if the disk fails while the journal is
                rewritten: then it is unknown whether the entry survives a machine crash, and no later commit succeeds.
        """
        self._append(entry)
        self.apply(entry)
        if self.journal.length >= self._fold_at:
            self._fold_at = self.journal.length + _FOLD_BYTES
            # The entry is safe in the journal; a failed fold is tried again when the journal has grown as much again.
            if self._folding is None or not self._folding.is_alive():
                with contextlib.suppress(StoreError):
                    self._fold_beside()

    def _append(self, entry: tuple[Any, ...]) -> None:
        self.journal.append(entry)
        if self._pending:
            self._record_pending()

    def _record_pending(self) -> None:
        """Mark the pending deletions as recorded, because the journal now contains them."""
        self._record_deletions(self._pending)
        self._pending.clear()

    def _record_deletions(self, deleted: Mapping[str, int]) -> None:
        # Update in place: the table may be large, and another thread may be about to copy it.
        if self.forgotten is None:
            self.forgotten = {}
        self.forgotten.update(deleted)

    def _fold_beside(self) -> None:
        """Fold the journal in another thread while commits go to a second journal file.

        The JSON files may or may not include commits made meanwhile. The second file contains all of them, and each
        frame holds the resulting state, so replaying it is safe.
        """
        self.journal.rotate()
        self._confirm_flushed()
        for each in self._unflushed:  # the JSON file will not contain them
            self._append((_DELAY, *each))
        sure = dict(self._flushed_delays), self._flushed_log_end
        folding = threading.Thread(target=self._finish_fold, args=sure, name="raymq-fold", daemon=True)
        begin(folding)
        self._folding = folding

    def _finish_fold(self, sure_delays: dict[int, int], sure_log_end: int) -> None:
        with contextlib.suppress(StoreError):
            self._save(sure_delays, sure_log_end)
            self.journal.compact()

    def apply(self, entry: tuple[Any, ...]) -> None:
        """Apply an entry to the tables in memory."""
        kind, *rest = entry
        if kind in (_CONSUMER, _RESET):
            group, topic, queue_id, offset = rest
            self.consumers.setdefault(group, {}).setdefault(topic, {})[queue_id] = offset
            (self.resets.add if kind == _RESET else self.resets.discard)((group, topic, queue_id))
        elif kind == _HEEDED:
            self.resets.discard(tuple(rest))
        elif kind == _CONSUMER_GONE:
            group, topic = rest
            self._forget(group, topic)
        elif kind == _TOPIC_GONE:
            topic, log_end = rest
            self._forget_topic(topic)
            self._record_deletions({topic: log_end})
        elif kind == _TELLS_DELETIONS:
            self._record_deletions({})
        elif kind == _DELAY:
            level, offset, self.log_end = rest
            self.delays[level] = offset
            self._unflushed.append((level, offset, self.log_end))
            self._confirm_flushed()

    def _forget_topic(self, topic: str) -> None:
        for group in [group for group, topics in self.consumers.items() if topic in topics]:
            self._forget(group, topic)

    def _forget(self, group: str, topic: str) -> None:
        for queue_id in self.consumers.get(group, {}).pop(topic, ()):
            self.resets.discard((group, topic, queue_id))
        if not self.consumers.get(group):
            self.consumers.pop(group, None)

    def forget_topic(self, topic: str, log_end: int) -> None:
        """Remove all offsets in a deleted topic, even if the disk refuses the change.

        Args:
            log_end: where the log ended when the topic was deleted. Every later opening also receives it through
                `RecoveryBounds.deleted_topics`.
        """
        entry = _TOPIC_GONE, topic, log_end
        if self.journal.append_or_defer(entry):
            self._record_pending()
            self.apply(entry)
        else:
            self._pending[topic] = log_end
            self._forget_topic(topic)

    def prune_deletions(self, before: int) -> None:
        """Drop the records of deletions at or before `before`, a physical offset.

        No later start receives these deletions any more.
        """
        forgotten = self.forgotten or {}
        for topic in [topic for topic, place in forgotten.items() if place <= before]:
            del forgotten[topic]

    def _confirm_flushed(self) -> None:
        """Move commits of delay levels to the flushed state once the log is flushed.

        A commit is safe when the log is on disk up to the commit's log end, because all copies that were delivered
        before the commit lie before that end.
        """
        flushed = self._flushed_offset()
        while self._unflushed and self._unflushed[0][-1] <= flushed:
            level, offset, self._flushed_log_end = self._unflushed.popleft()
            self._flushed_delays[level] = offset

    def fold(self) -> None:
        """Write the JSON files and empty the journal.

        A crash in between only means that the journal is replayed. The file of the delay levels holds offsets that stay
        valid even if the log loses everything that is not on disk yet. Later commits stay in the journal. Each of them
        has the log's end, which shows whether its copies were lost.

        Raises:
            StoreFull, StoreFailed: the fold was not done; no commit is lost.
        """
        self._wait()
        self._confirm_flushed()
        self._save(dict(self._flushed_delays), self._flushed_log_end)
        self.journal.rewrite((_DELAY, *each) for each in self._unflushed)
        self._record_pending()

    def _wait(self) -> None:
        if self._folding is not None:
            self._folding.join()

    def _save(self, sure_delays: dict[int, int], sure_log_end: int) -> None:
        """Write the JSON files; any thread may call it, one at a time."""
        self._version, self._delay_version = self._version.next(), self._delay_version.next()
        content = self._encoded_consumers()
        delays = {str(level): offset for level, offset in sure_delays.items()}
        delay_content = {
            "dataVersion": self._delay_version.to_json(),
            "offsetTable": delays,
            "raymqLogEnd": sure_log_end,
        }
        # After a power loss the journal must not be older than these files, or its replay would move offsets back.
        self.journal.sync()
        json_file.save_encoded(self._consumer_path, content, parse_consumer_offsets, self._last_saved)
        self._last_saved = content
        self._fold_at = max(_FOLD_BYTES, 2 * len(content))
        failpoint("compaction.before_delays")
        json_file.save_encoded(
            self._delay_path, json_file.with_checksum(json_file.encode(delay_content).encode()), parse_delay_offsets
        )
        failpoint("compaction.before_clear")

    def _encoded_consumers(self) -> bytes:
        """Return the content of RocketMQ's file of consumers' offsets.

        It is made group by group, so that other threads get the interpreter in between. Each copy of a table is one
        atomic operation of the interpreter.
        """
        # Copy it before the tables: a later deletion is in a frame that will be replayed.
        forgotten = (self.forgotten or {}).copy()
        resets = self.resets.copy()
        table: list[str] = []
        groups: dict[str, list[str]] = {}
        for group, topics in self.consumers.copy().items():
            time.sleep(0)
            queues = topics.copy()
            groups[group] = list(queues)
            table += [
                f"{json_file.encode(f'{name}@{group}')}:{json_file.encode(q.copy())}" for name, q in queues.items()
            ]
        content: dict[str, Any] = {"dataVersion": self._version.to_json(), "groupTopicMap": groups}
        if resets:
            content["raymqResets"] = sorted(resets)
        content["raymqForgottenTopics"] = forgotten
        text = f'{json_file.encode(content)[:-1]},"offsetTable":{{{",".join(table)}}}}}'
        return json_file.with_checksum(text.encode())

    def close(self, *, fold: bool) -> None:
        """Close the journal; its commits are kept.

        Args:
            fold: write the commits to the JSON files first, durably.
        """
        self._wait()
        if fold and not self.journal.empty:
            self.fold()
        self.journal.close()


class ConsumerOffsets:
    """The next offset that each group will consume, by topic and queue."""

    def __init__(self, progress: ConsumerOffsetStore) -> None:
        self._progress = progress

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset, also to a lower one.

        It survives a process crash when this returns.
        """
        if self.get(group, topic, queue_id) != offset or self.is_reset_pending(group, topic, queue_id):
            self._progress.commit((_CONSUMER, group, topic, queue_id, offset))

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset and mark the reset as pending for the group.

        The reset is pending until `clear_reset`, or until the offset is set again. Offset and mark survive a process
        crash when this returns.
        """
        self._progress.commit((_RESET, group, topic, queue_id, offset))

    def is_reset_pending(self, group: str, topic: str, queue_id: int) -> bool:
        """Return True if the group has not yet applied a reset of its offset."""
        return (group, topic, queue_id) in self._progress.resets

    def clear_reset(self, group: str, topic: str, queue_id: int) -> None:
        """Clear the pending reset after the group has moved to the new offset."""
        if self.is_reset_pending(group, topic, queue_id):
            self._progress.commit((_HEEDED, group, topic, queue_id))

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the committed offset, or None if there is none."""
        return self._progress.consumers.get(group, {}).get(topic, {}).get(queue_id)

    def of(self, group: str, topic: str) -> dict[int, int]:
        """Return the group's offsets by queue id."""
        return dict(self._progress.consumers.get(group, {}).get(topic, {}))

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which the group has committed offsets."""
        return list(self._progress.consumers.get(group, {}))

    def groups(self) -> list[str]:
        """Return all groups that have committed offsets."""
        return list(self._progress.consumers)

    def delete(self, group: str, topic: str) -> None:
        """Delete the group's offsets of one topic.

        Raise as `ConsumerOffsetStore.commit` does.
        """
        if topic in self._progress.consumers.get(group, {}):
            self._progress.commit((_CONSUMER_GONE, group, topic))


class DelayOffsets:
    """The offset in each delay level's queue of the next message to deliver."""

    def __init__(self, progress: ConsumerOffsetStore) -> None:
        self._progress = progress

    def commit(self, level: int, next_offset: int, log_end: int) -> None:
        """Set the level's next offset; it survives a process crash when this returns.

        Args:
            log_end: the current end of the log: all copies that were delivered lie before it.
        """
        if self.get(level) != next_offset:
            self._progress.commit((_DELAY, level, next_offset, log_end))

    def get(self, level: int) -> int | None:
        """Return the next offset, or None if the level has no progress yet."""
        return self._progress.delays.get(level)

    def advance_log_end(self, log_end: int) -> None:
        """Record that every copy delivered before `log_end` is committed, for all levels with an offset."""
        if self._progress.delays and log_end != self.log_end:
            level, offset = next(iter(self._progress.delays.items()))
            self._progress.commit((_DELAY, level, offset, log_end))

    @property
    def log_end(self) -> int:
        """Return the log's end at the newest commit.

        Copies after it may have been delivered but not committed.
        """
        return self._progress.log_end
