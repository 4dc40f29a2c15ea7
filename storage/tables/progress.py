"""How far consumers and delay levels have come: what is committed survives the death of the process at once.

A commit appends one frame to `raymq/progress.journal` with a single write; from then on the kernel has it. The
journal is folded into RocketMQ's config/consumerOffset.json and config/delayOffset.json when it has grown, at opening
and at closing. Frame: length of the payload u4 | CRC-32 of the payload u4 | payload (msgpack). A frame that is cut off
or does not match its CRC ends the journal; only the newest one can be.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgpack

from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.errors import StoreError, StoreFailed, StoreFull
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil, json_file
from raymq.storage.tables.offset_tables import read_consumers, read_delays
from raymq.storage.tables.remains import EVERYTHING, Remains

_FRAME = struct.Struct(">II")
_FOLD_BYTES: Final = 4 << 20
_CONSUMER: Final = "c"
_CONSUMER_GONE: Final = "g"
_TOPIC_GONE: Final = "t"
_RESET: Final = "r"
_HEEDED: Final = "h"
_DELAY: Final = "d"


def ignore_failure(_: StoreError) -> None:
    """What a failure means to a journal of its own."""


class Journal:
    """The file of frames. One thread, but for `sync` and `settle`.

    While what its frames say is written elsewhere, further frames can go into another file beside it (`divert`), which
    takes its place when that is done (`settle`). A journal that is all that there is of a table has its own elsewhere:
    a file of frames that say the same in less. Opening reads all three: that one, the journal, the one beside it.
    """

    def __init__(
        self, path: Path, *, writable: bool, on_failure: Callable[[StoreError], None] = ignore_failure
    ) -> None:
        """Read what is there (`entries`) and, if writable, cut off a torn end.

        Args:
            on_failure: told when the disk has failed so that what is appended from then on might be lost.
        """
        self._path = path
        self._on_failure = on_failure
        self._failure: StoreError | None = None
        self._fd = -1
        self._torn = False
        #: Frames that stand before the next one.
        self._owed = b""
        self._descriptor = threading.Lock()
        #: The descriptor of the file that was diverted from; its frames count until `settle`.
        self._before = -1
        self._beside = path.with_name(path.name + ".beside")
        self._base = path.with_name(path.name + ".base")
        self._has_base = False
        self._unsynced_name = False
        if writable:
            fileutil.make_folder(path.parent)
        self.entries: list[tuple[Any, ...]] = []
        #: Bytes of the file that frames are appended to.
        self.length = 0
        with contextlib.suppress(FileNotFoundError):
            self.entries += _read(fileutil.read_whole(self._base))[0]
            self._has_base = True
        self._take(path, writable=writable)
        if self._beside.exists():
            self._before, self._fd = self._fd, -1
            self._take(self._beside, writable=writable)

    def _take(self, path: Path, *, writable: bool) -> None:
        try:
            content = fileutil.read_whole(path)
        except FileNotFoundError:
            content = b""
        entries, self.length = _read(content)
        self.entries += entries
        if writable:
            self._fd = fileutil.open_for_append(path)
            if self.length < len(content):
                fileutil.truncate(self._fd, self.length, path)

    @property
    def empty(self) -> bool:
        """Whether there is no frame, but for those that `settle` was given, and none is owed."""
        return self.length == 0 and self._before < 0 and not self._owed

    @property
    def is_diverted(self) -> bool:
        """Whether frames from before a `divert` wait for their `settle`."""
        return self._before >= 0

    def divert(self) -> None:
        """Append to another file from now on, if that is not so already. StoreFull, StoreFailed: as before."""
        if self._before < 0:
            self.check()
            fd = fileutil.open_for_append(self._beside)
            with self._descriptor:
                self._before, self._fd = self._fd, fd
                self._unsynced_name = True
            self.length, self._torn = 0, False

    def settle(self, entries: Iterable[tuple[Any, ...]] | None = None) -> int:
        """Drop the frames of before `divert`. Any thread, one at a time.

        Args:
            entries: what these frames say, and all before them, in less. They may say what later frames say, too, if
                it changes nothing to hear those again from the first one on. None: all that is safe elsewhere.

        Returns:
            how many bytes the entries take.

        Raises:
            StoreFull, StoreFailed: the other file has not got the place, or perhaps not for good; nothing is lost.
        """
        content = b""
        if entries is not None:
            content = b"".join(map(_framed, entries))
            self.sync()  # After a loss of power the journal must not say less than that file.
            self._replace_base(content)
        fileutil.move(self._beside, self._path)
        with self._descriptor:
            before, self._before = self._before, -1
            self._unsynced_name = True
        fileutil.close(before)
        try:
            fileutil.sync_directory(self._path.parent)
        except StoreFailed as error:
            self._on_failure(error)
            raise
        return len(content)

    def _replace_base(self, content: bytes) -> None:
        fileutil.replace(self._base, content)
        self._has_base = True
        failpoint("journal.after_base")

    def append(self, entry: tuple[Any, ...]) -> None:
        """Hand a frame to the kernel; it survives the process when this returns.

        Raises:
            StoreError: opened read-only.
            StoreFull, StoreFailed: not written; the journal is as before.
        """
        if self._fd < 0:
            raise StoreError("the store was opened read-only, or closed")
        self.check()
        frame = self._owed + _framed(entry)
        if self._torn:
            self._cut()
        failpoint("journal.before_write")
        try:
            fileutil.write_all(self._fd, frame, self._path)
        except StoreError:
            self._torn = True
            with contextlib.suppress(StoreError):
                self._cut()
            raise
        failpoint("journal.after_write")
        self._owed = b""
        self.length += len(frame)

    def append_or_owe(self, entry: tuple[Any, ...]) -> None:
        """`append`; where it fails the frame is owed: it is written with the next one, before that.

        Until then a start does not know of it, so what it says has to be told by something else, too.
        """
        try:
            self.append(entry)
        except (StoreFull, StoreFailed):
            self._owed += _framed(entry)

    def _cut(self) -> None:
        """Drop what is no whole frame, behind which no other could be found."""
        fileutil.truncate(self._fd, self.length, self._path)
        self._torn = False

    def check(self) -> None:
        """StoreFailed if the journal cannot be relied on any more."""
        if self._failure is not None:
            raise StoreFailed(f"the store failed before: {self._failure}") from self._failure

    def rewrite(self, entries: Iterable[tuple[Any, ...]] = ()) -> None:
        """Drop all frames for these, which say the same in less.

        Raises:
            StoreFull, StoreFailed: not done, the frames are still there. If the new file has taken the old one's
                place and that may not outlive the machine, nothing is appended any more (`check`).
        """
        # By a new file: after a loss of power an old page behind new ones would bring back old frames. Everything
        # that can be refused comes before the rename; frames go to the file that has the name, from then on.
        content = b"".join(map(_framed, entries))
        if self._has_base:
            self._replace_base(content)
            content = b""
        with fileutil.opened_directory(self._path.parent) as folder:
            fd = fileutil.write_successor(self._path, content)
            failpoint("journal.before_rename")
            try:
                fileutil.give_place(self._path)
            except BaseException:
                fileutil.close(fd)
                raise
            with self._descriptor:
                old, self._fd = self._fd, fd
                before, self._before = self._before, -1
            failpoint("journal.after_rename")
            fileutil.close(old)
            self.entries, self.length, self._torn, self._owed = [], len(content), False, b""
            try:
                if before >= 0:  # Its frames are older than those that will come.
                    fileutil.close(before)
                    fileutil.unlink(self._beside)  # takes no descriptor, which there may be none of
                fileutil.sync_opened_directory(folder, self._path.parent)
            except StoreError as error:
                self._failure = error
                self._on_failure(error)
                raise

    def sync(self) -> None:
        """Wait until the frames are on disk; StoreFailed if they may not be. Any thread."""
        # Beside the lock, for who appends must not wait for the disk.
        fds: list[int] = []
        try:
            with self._descriptor:
                # If one cannot be had, those before it are in the list, and closed.
                fds.extend(fileutil.duplicate(fd, self._path) for fd in (self._before, self._fd) if fd >= 0)
                name, self._unsynced_name = self._unsynced_name, False
            for fd in fds:
                fileutil.fdatasync(fd, self._path)
            if name:
                self._sync_name()
        finally:
            for fd in fds:
                fileutil.close(fd)

    def _sync_name(self) -> None:
        try:
            fileutil.sync_directory(self._path.parent)
        except StoreError:
            with self._descriptor:
                self._unsynced_name = True  # the next one has to do it
            raise

    def close(self) -> None:
        """Let go of the file. May be called again."""
        with self._descriptor:
            for fd in (self._before, self._fd):
                if fd >= 0:
                    fileutil.close(fd)
            self._before = self._fd = -1


def _framed(entry: tuple[Any, ...]) -> bytes:
    payload: bytes = msgpack.packb(entry)
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def _read(content: bytes) -> tuple[list[tuple[Any, ...]], int]:
    """The entries of a journal and how many of its bytes are whole frames."""
    entries: list[tuple[Any, ...]] = []
    at = 0
    while at + _FRAME.size <= len(content):
        length, crc = _FRAME.unpack_from(content, at)
        payload = content[at + _FRAME.size : at + _FRAME.size + length]
        if len(payload) < length or length == 0 or zlib.crc32(payload) != crc:
            break
        entries.append(tuple(msgpack.unpackb(payload)))
        at += _FRAME.size + length
    return entries, at


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
        self.resets = consumers.resets
        #: Where the log ended when topics were deleted whose offsets are forgotten.
        self.forgotten = consumers.forgotten
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
        for entry in self.journal.entries:
            if entry[0] != _DELAY or remains.has(entry[-1]):
                self.apply(entry)
        clamped = self._forget_deleted() | self._clamp()
        self.consumer_offsets = ConsumerOffsets(self)
        self.delay_progress = DelayProgress(self)
        if writable and (clamped or not self.journal.empty):
            self.fold()

    def _forget_deleted(self) -> bool:
        """Forget offsets in deleted topics where the journal was not told of the deletion; whether anything changed."""
        deleted, told = self._remains.deleted_topics, self.forgotten
        unheeded = self._remains.deleted_later(told)
        for topic in unheeded:
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
        self.journal.append(entry)
        self.apply(entry)
        if self.journal.length >= self._fold_at:
            self._fold_at = self.journal.length + _FOLD_BYTES
            # The entry is safe in the journal; a failed fold is tried again when as much has come in.
            if self._folding is None or not self._folding.is_alive():
                with contextlib.suppress(StoreError):
                    self._fold_beside()

    def _fold_beside(self) -> None:
        """`fold` in another thread, while commits go on: they go into another file of the journal.

        What is committed meanwhile may be in the JSON files or not: all of it is in that file, too, and each frame says
        what is so afterwards.
        """
        self.journal.divert()
        self._make_sure()
        for each in self._unsure:  # The JSON file will not say them.
            self.journal.append((_DELAY, *each))
        sure = dict(self._sure_delays), self._sure_log_end
        self._folding = threading.Thread(target=self._finish_fold, args=sure, name="raymq-fold", daemon=True)
        self._folding.start()

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
            self.consumers.get(group, {}).pop(topic, None)
            if not self.consumers.get(group):
                self.consumers.pop(group, None)
            self.resets = {each for each in self.resets if each[:2] != (group, topic)}
        elif kind == _TOPIC_GONE:
            topic, log_end = rest
            self._forget_topic(topic)
            self.forgotten = (self.forgotten or {}) | {topic: log_end}
        elif kind == _DELAY:
            level, offset, self.log_end = rest
            self.delays[level] = offset
            self._unsure.append((level, offset, self.log_end))
            self._make_sure()

    def _forget_topic(self, topic: str) -> None:
        for group in [group for group, topics in self.consumers.items() if topic in topics]:
            del self.consumers[group][topic]
            if not self.consumers[group]:
                del self.consumers[group]
        if any(each[1] == topic for each in self.resets):
            self.resets = {each for each in self.resets if each[1] != topic}

    def forget_topic(self, topic: str, log_end: int) -> None:
        """The topic was deleted when the log ended there: no group has an offset in it, whatever the disk does.

        Args:
            log_end: told to every later opening by `Remains.deleted_topics`, too.
        """
        entry = _TOPIC_GONE, topic, log_end
        self.journal.append_or_owe(entry)
        self.apply(entry)

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
        json_file.save_encoded(self._consumer_path, content, self._last_saved)
        self._last_saved = content
        self._fold_at = max(_FOLD_BYTES, 2 * len(content))
        failpoint("fold.before_delays")
        json_file.save(self._delay_path, delay_content)
        failpoint("fold.before_clear")

    def _encoded_consumers(self) -> bytes:
        """RocketMQ's file of consumers' offsets. Group by group, so that other threads get the interpreter in between;
        each copy of a table is one operation of it.
        """
        resets = self.resets.copy()
        table: list[str] = []
        groups: dict[str, list[str]] = {}
        for group, topics in list(self.consumers.items()):
            time.sleep(0)
            queues = topics.copy()
            groups[group] = list(queues)
            table += [
                f"{json_file.encode(f'{name}@{group}')}:{json_file.encode(q.copy())}" for name, q in queues.items()
            ]
        content: dict[str, Any] = {"dataVersion": self._version.to_json(), "groupTopicMap": groups}
        if resets:
            content["raymqResets"] = sorted(resets)
        content["raymqForgottenTopics"] = self.forgotten or {}
        return f'{json_file.encode(content)[:-1]},"offsetTable":{{{",".join(table)}}}}}'.encode()

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
        """Forget the group's offsets of one topic: at once, then in the journal (it raises if not)."""
        if topic in self._progress.consumers.get(group, {}):
            gone = (_CONSUMER_GONE, group, topic)
            try:
                self._progress.commit(gone)
            except StoreError:
                self._progress.apply(gone)
                raise


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
