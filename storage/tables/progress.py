"""How far consumers and delay levels have come: what is committed survives the death of the process at once.

A commit appends one frame to `raymq/progress.journal` (see `journal`). It is folded into RocketMQ's
config/consumerOffset.json and config/delayOffset.json when it has grown, at opening and at closing.

A broker of RocketMQ's knows no journal. Where one has had the directory after a kill of ours, and has written these
files anew, the frames are older than what they say: nothing goes back for them.
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
from raymq.storage.files.work_thread import begin
from raymq.storage.tables.journal import Journal, ignore_failure
from raymq.storage.tables.offset_tables import consumers_of, delays_of, read_consumers, read_delays
from raymq.storage.tables.remains import EVERYTHING, Remains

_FOLD_BYTES: Final = 4 << 20
_CONSUMER: Final = "c"
_CONSUMER_GONE: Final = "g"
_TOPIC_GONE: Final = "t"
_RESET: Final = "r"
_HEEDED: Final = "h"
_DELAY: Final = "d"
#: The first frame of all, where there is no file yet: deletions of topics are told here from the beginning.
_TELLS_DELETIONS: Final = "k"


class Progress:
    """Both kinds of progress over one journal; `consumer_offsets` and `delay_progress` are its two faces."""

    def __init__(
        self,
        config: Path,
        journal: Path,
        *,
        writable: bool,
        on_failure: Callable[[StoreError], None] = ignore_failure,
        remains: Remains = EVERYTHING,
        flushed_offset: Callable[[], int] = lambda: EVERYTHING.log_end,
    ) -> None:
        """Load the JSON files and replay the journal over them, as far as the log has what they speak of.

        Args:
            on_failure: as in `Journal`.
            remains: what there is.
            flushed_offset: says up to where the log is on disk.

        Raises:
            StoreCorrupt: a JSON file and its .bak are unreadable.
        """
        self._consumer_path = config / "consumerOffset.json"
        self._delay_path = config / "delayOffset.json"
        consumers, delays = read_consumers(self._consumer_path), read_delays(self._delay_path)
        self._version, self._delay_version = consumers.version, delays.version
        self.consumers, self.delays = consumers.offsets, delays.offsets
        #: The queues whose group was reset and has not gone there yet; its offset is the place.
        self.resets = {each for each in consumers.resets if each[2] in self.consumers.get(each[0], {}).get(each[1], ())}
        #: Where the log ended when topics were deleted whose offsets are forgotten; None: nobody wrote it down.
        self.forgotten = consumers.forgotten
        #: The same of deletions that the journal has not taken yet. Nothing on disk may say that it knows of them: the
        #: frames that are there say what groups had in the topic before.
        self._owed: dict[str, int] = {}
        self.log_end = delays.log_end
        self._fold_at = _FOLD_BYTES
        self._folding: threading.Thread | None = None
        #: What was written last into the file of the consumers' offsets.
        self._last_saved: bytes | None = None
        self._remains = remains
        self._flushed_offset = flushed_offset
        #: The levels' newest commits that were made when the log reached further than it is on disk, oldest first.
        self._unsure: deque[tuple[int, int, int]] = deque()
        self._sure_delays, self._sure_log_end = dict(self.delays), self.log_end
        self.journal = Journal(journal, writable=writable, on_failure=on_failure)
        self.consumer_offsets = ConsumerOffsets(self)
        self.delay_progress = DelayProgress(self)
        try:
            self._recover(
                writable=writable, is_new=not consumers.is_there, foreign=(consumers.is_foreign, delays.is_foreign)
            )
        except BaseException:
            self.journal.close()
            raise

    def _recover(self, *, writable: bool, is_new: bool, foreign: tuple[bool, bool]) -> None:
        """Hear the journal, as far as it speaks of what is there; whether the files of both kinds are `foreign`."""
        if self.journal.empty and is_new:
            self.forgotten = {}
            self.journal.begin_with((_TELLS_DELETIONS,))
        self._hear(self.journal.entries, foreign)
        # Each frame says what is so afterwards, whatever those before it said: also those behind damage hold. But where
        # the log ended is said for all levels, and what came before that may be what the damaged ones said of others.
        log_end = self.log_end
        self._hear(self.journal.behind, foreign)
        self.log_end = min(self.log_end, log_end)
        clamped = self._forget_deleted(writable=writable) | self._clamp()
        if writable and (clamped or not self.journal.empty):
            self.fold()

    def _hear(self, entries: Iterable[tuple[Any, ...]], foreign: tuple[bool, bool]) -> None:
        for entry in entries:
            is_delay = entry[0] == _DELAY
            if is_delay and not self._remains.has(entry[-1]):
                continue
            if not foreign[is_delay] or self._goes_on(entry):
                self.apply(entry)

    def _goes_on(self, entry: tuple[Any, ...]) -> bool:
        """Whether a commit goes beyond what is known of a queue, or of a level; other frames do not."""
        kind, *rest = entry
        if kind == _DELAY:
            return bool(rest[1] > self.delays.get(rest[0], -1))
        if kind != _CONSUMER:
            return False
        group, topic, queue_id, offset = rest
        return bool(offset > self.consumers.get(group, {}).get(topic, {}).get(queue_id, -1))

    def _forget_deleted(self, *, writable: bool) -> bool:
        """Forget offsets in deleted topics where the journal was not told of the deletion; whether anything changed.

        The journal is told first: if the fold that follows does not come to its end its frames are heard again, behind
        a file that says it knows of these deletions.
        """
        deleted, told = self._remains.deleted_topics, self.forgotten
        unheeded = self._remains.deleted_later(told)
        has = {topic for topics in self.consumers.values() for topic in topics} | {each[1] for each in self.resets}
        for topic in unheeded:
            if writable and topic in has:
                self.journal.append((_TOPIC_GONE, topic, deleted[topic]))
            self._forget_topic(topic)
        self.forgotten = dict(deleted)
        return bool(unheeded) or self.forgotten != told

    def _clamp(self) -> bool:
        """Let nothing speak of what the log does not have; whether anything did. See `remains`."""
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
        # Recovery has brought to disk what the log has: all of it is sure.
        self._unsure.clear()
        self._sure_delays, self._sure_log_end = dict(self.delays), self.log_end
        return clamped

    def commit(self, entry: tuple[Any, ...]) -> None:
        """Write an entry to the journal, then apply it.

        Raises:
            as `Journal.append`: nothing was committed; but StoreFailed, too, if the disk fails while the journal is
            rewritten: then nobody knows whether the entry outlives the machine, and nothing is committed any more.
        """
        self._append(entry)
        self.apply(entry)
        if self.journal.length >= self._fold_at:
            self._fold_at = self.journal.length + _FOLD_BYTES
            # The entry is safe in the journal; a failed fold is tried again when as much has come in.
            if self._folding is None or not self._folding.is_alive():
                with contextlib.suppress(StoreError):
                    self._fold_beside()

    def _append(self, entry: tuple[Any, ...]) -> None:
        self.journal.append(entry)
        if self._owed:
            self._note_owed()

    def _note_owed(self) -> None:
        """The journal has the deletions that were owed."""
        self._know(self._owed)
        self._owed.clear()

    def _know(self, deleted: Mapping[str, int]) -> None:
        # In place: there may be very many, and another thread may be about to copy them.
        if self.forgotten is None:
            self.forgotten = {}
        self.forgotten.update(deleted)

    def _fold_beside(self) -> None:
        """`fold` in another thread, while commits go on: they go into another file of the journal.

        What is committed meanwhile may be in the JSON files or not: all of it is in that file, too, and each frame says
        what is so afterwards.
        """
        self.journal.divert()
        self._make_sure()
        for each in self._unsure:  # The JSON file will not say them.
            self._append((_DELAY, *each))
        sure = dict(self._sure_delays), self._sure_log_end
        folding = threading.Thread(target=self._finish_fold, args=sure, name="raymq-fold", daemon=True)
        begin(folding)
        self._folding = folding

    def _finish_fold(self, sure_delays: dict[int, int], sure_log_end: int) -> None:
        with contextlib.suppress(StoreError):
            self._save(sure_delays, sure_log_end)
            self.journal.settle()

    def apply(self, entry: tuple[Any, ...]) -> None:
        """What an entry says, in memory."""
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
            self._know({topic: log_end})
        elif kind == _TELLS_DELETIONS:
            self._know({})
        elif kind == _DELAY:
            level, offset, self.log_end = rest
            self.delays[level] = offset
            self._unsure.append((level, offset, self.log_end))
            self._make_sure()

    def _forget_topic(self, topic: str) -> None:
        for group in [group for group, topics in self.consumers.items() if topic in topics]:
            self._forget(group, topic)

    def _forget(self, group: str, topic: str) -> None:
        for queue_id in self.consumers.get(group, {}).pop(topic, ()):
            self.resets.discard((group, topic, queue_id))
        if not self.consumers.get(group):
            self.consumers.pop(group, None)

    def forget_topic(self, topic: str, log_end: int) -> None:
        """The topic was deleted when the log ended there: no group has an offset in it, whatever the disk does.

        Args:
            log_end: told to every later opening by `Remains.deleted_topics`, too.
        """
        entry = _TOPIC_GONE, topic, log_end
        if self.journal.append_or_owe(entry):
            self._note_owed()
            self.apply(entry)
        else:
            self._owed[topic] = log_end
            self._forget_topic(topic)

    def forget_deletions(self, before: int) -> None:
        """No start will hear any more that topics were deleted at or before that place of the log."""
        forgotten = self.forgotten or {}
        for topic in [topic for topic, place in forgotten.items() if place <= before]:
            del forgotten[topic]

    def _make_sure(self) -> None:
        """The copies that were delivered before a level's commit are on disk once the log is, up to there."""
        flushed = self._flushed_offset()
        while self._unsure and self._unsure[0][-1] <= flushed:
            level, offset, self._sure_log_end = self._unsure.popleft()
            self._sure_delays[level] = offset

    def fold(self) -> None:
        """Write the JSON files and empty the journal; a crash in between only means that it is replayed.

        The file of the delay levels says what holds even if the log loses what is not on disk yet; later commits stay
        in the journal, each with the log's end, so that they can be told from those whose copies are lost.

        Raises:
            StoreFull, StoreFailed: not done, nothing is lost.
        """
        self._wait()
        self._make_sure()
        self._save(dict(self._sure_delays), self._sure_log_end)
        self.journal.rewrite((_DELAY, *each) for each in self._unsure)
        self._note_owed()

    def _wait(self) -> None:
        if self._folding is not None:
            self._folding.join()

    def _save(self, sure_delays: dict[int, int], sure_log_end: int) -> None:
        """Write the JSON files. Any thread, one at a time."""
        self._version, self._delay_version = self._version.next(), self._delay_version.next()
        content = self._encoded_consumers()
        delays = {str(level): offset for level, offset in sure_delays.items()}
        delay_content = {
            "dataVersion": self._delay_version.to_json(),
            "offsetTable": delays,
            "raymqLogEnd": sure_log_end,
        }
        # After a loss of power the journal must not say less than these files, or it would take offsets back.
        self.journal.sync()
        json_file.save_encoded(self._consumer_path, content, consumers_of, self._last_saved)
        self._last_saved = content
        self._fold_at = max(_FOLD_BYTES, 2 * len(content))
        failpoint("fold.before_delays")
        json_file.save_encoded(self._delay_path, json_file.sealed(json_file.encode(delay_content).encode()), delays_of)
        failpoint("fold.before_clear")

    def _encoded_consumers(self) -> bytes:
        """RocketMQ's file of consumers' offsets. Group by group, so that other threads get the interpreter in between;
        each copy of a table is one operation of it.
        """
        # Before the tables: what is deleted after it is in a frame that is heard again.
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
        told = f'{json_file.encode(content)[:-1]},"offsetTable":{{{",".join(table)}}}}}'
        return json_file.sealed(told.encode())

    def close(self, *, fold: bool) -> None:
        """Let go of the journal, whose commits stay; with `fold` they go into the JSON files first, durably."""
        self._wait()
        if fold and not self.journal.empty:
            self.fold()
        self.journal.close()


class ConsumerOffsets:
    """The next offset that each group will consume, by topic and queue."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset, also to a lower one; it survives the death of the process when this returns."""
        if self.get(group, topic, queue_id) != offset or self.awaits(group, topic, queue_id):
            self._progress.commit((_CONSUMER, group, topic, queue_id, offset))

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset, and keep in mind that the group has to go there until `heeded`, or until it is set anew.

        Both survive the death of the process when this returns.
        """
        self._progress.commit((_RESET, group, topic, queue_id, offset))

    def awaits(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a reset of the group's offset in the queue waits for the group."""
        return (group, topic, queue_id) in self._progress.resets

    def heeded(self, group: str, topic: str, queue_id: int) -> None:
        """The group has gone to where it was reset to."""
        if self.awaits(group, topic, queue_id):
            self._progress.commit((_HEEDED, group, topic, queue_id))

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """The committed offset; None if there is none."""
        return self._progress.consumers.get(group, {}).get(topic, {}).get(queue_id)

    def of(self, group: str, topic: str) -> dict[int, int]:
        """The group's offsets by queue id."""
        return dict(self._progress.consumers.get(group, {}).get(topic, {}))

    def topics_of(self, group: str) -> list[str]:
        """The topics of which the group has committed something."""
        return list(self._progress.consumers.get(group, {}))

    def groups(self) -> list[str]:
        """All groups that have committed something."""
        return list(self._progress.consumers)

    def delete(self, group: str, topic: str) -> None:
        """Forget the group's offsets of one topic; raises as `Progress.commit`."""
        if topic in self._progress.consumers.get(group, {}):
            self._progress.commit((_CONSUMER_GONE, group, topic))


class DelayProgress:
    """The next offset of each delay level's queue that is to be delivered."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def commit(self, level: int, next_offset: int, log_end: int) -> None:
        """Set it; it survives the death of the process when this returns.

        Args:
            log_end: the log's end at this moment: all copies that were delivered lie before it.
        """
        if self.get(level) != next_offset:
            self._progress.commit((_DELAY, level, next_offset, log_end))

    def get(self, level: int) -> int | None:
        """The next offset; None if the level has no progress yet."""
        return self._progress.delays.get(level)

    def knows_all_before(self, log_end: int) -> None:
        """Say of all levels that have a place that no copy before `log_end` is delivered and not committed."""
        if self._progress.delays and log_end != self.log_end:
            level, offset = next(iter(self._progress.delays.items()))
            self._progress.commit((_DELAY, level, offset, log_end))

    @property
    def log_end(self) -> int:
        """The log's end at the newest commit; copies behind it may be delivered and not committed."""
        return self._progress.log_end
