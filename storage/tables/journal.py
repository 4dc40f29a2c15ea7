"""A file of frames (`frames`): what is appended to it survives the death of the process at once.

A frame is written with a single write; from then on the kernel has it. One at the end that is cut off was not written
whole, which a loss of power or a full disk may leave, and goes. One before that of which bytes have changed is damage:
that is told, and what can be read behind it is kept apart, for the table to say what of that still holds.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from raymq.storage.errors import StoreError, StoreFailed, StoreFull
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.tables.frames import framed, read_frames

_log = logging.getLogger(__name__)


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
        """Read what is there and, if writable, cut off a torn end.

        `entries` are the frames up to the first damage, `behind` those that can be read behind it, and `damage` says
        where it is: file, offset, bytes.

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
        #: The frame that stands before the first one.
        self._preface = b""
        #: How long the frame is that was appended last.
        self._newest = 0
        self._descriptor = threading.Lock()
        #: The descriptor of the file that was diverted from; its frames count until `settle`.
        self._before = -1
        self._beside = path.with_name(path.name + ".beside")
        self._base = path.with_name(path.name + ".base")
        self._has_base = False
        #: How many times a name was given to a file, and how many of these are on disk for sure.
        self._names = self._synced_names = 0
        if writable:
            fileutil.make_folder(path.parent)
        self.entries: list[tuple[Any, ...]] = []
        self.behind: list[tuple[Any, ...]] = []
        self.damage: list[tuple[Path, int, int]] = []
        #: Bytes of the file that frames are appended to.
        self.length = 0
        try:
            with contextlib.suppress(FileNotFoundError):
                base = fileutil.read_whole(self._base)
                self._has_base = True
                # It took its name when it was whole: no end of it can be missing.
                if (length := self._hear(self._base, base)) < len(base):
                    self._note_damage(self._base, length, len(base))
            self._take(path, writable=writable)
            if self._beside.exists():
                self._before, self._fd = self._fd, -1
                self._take(self._beside, writable=writable)
        except BaseException:
            self.close()
            raise

    def _take(self, path: Path, *, writable: bool) -> None:
        try:
            content = fileutil.read_whole(path)
        except FileNotFoundError:
            content = b""
        self.length = self._hear(path, content)
        if writable:
            self._fd = fileutil.open_for_append(path)
            if self.length < len(content):
                fileutil.truncate(self._fd, self.length, path)

    def _hear(self, path: Path, content: bytes) -> int:
        """Keep what a file says; how many of its bytes are frames, or damage before them."""
        found = read_frames(content)
        if self.damage:
            self.behind += found.entries
        else:
            self.entries += found.entries
        self.behind += found.behind
        for begin, end in found.damage:
            self._note_damage(path, begin, end)
        return found.length

    def _note_damage(self, path: Path, begin: int, end: int) -> None:
        _log.error("%s: %d bytes at %d are not what was written, and what they said is lost", path, end - begin, begin)
        self.damage.append((path, begin, end - begin))

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
                self._names += 1
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
            content = b"".join(map(framed, entries))
            self.sync()  # After a loss of power the journal must not say less than that file.
            self._replace_base(content)
        fileutil.move(self._beside, self._path)
        with self._descriptor:
            before, self._before = self._before, -1
            self._names += 1
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
        frame = framed(entry)
        self._write(self._preface + self._owed + frame)
        self._preface = self._owed = b""
        self._newest = len(frame)

    def take_back(self) -> None:
        """Drop the frame that was appended last, which takes no room, as one that says the contrary would.

        StoreFull, StoreFailed: it is there yet, and goes before the next one is written.
        """
        self.length -= self._newest
        self._newest, self._torn = 0, True
        self._cut()

    def _write(self, frames: bytes) -> None:
        if self._torn:
            self._cut()
        failpoint("journal.before_write")
        try:
            fileutil.write_all(self._fd, frames, self._path)
        except StoreError:
            self._torn = True
            with contextlib.suppress(StoreError):
                self._cut()
            raise
        failpoint("journal.after_write")
        self.length += len(frames)

    def append_or_owe(self, entry: tuple[Any, ...]) -> bool:
        """`append`; where it fails the frame is owed: it is written with the next one, before that.

        Until then a start does not know of it, so what it says has to be told by something else, too.

        Returns:
            whether it is written.
        """
        try:
            self.append(entry)
        except (StoreFull, StoreFailed):
            self._owed += framed(entry)
            return False
        return True

    def begin_with(self, entry: tuple[Any, ...]) -> None:
        """Of a journal without frames: have this one stand before the first, written together with it."""
        self._preface = framed(entry)

    def _cut(self) -> None:
        """Drop what is no whole frame, behind which no other could be found."""
        fileutil.truncate(self._fd, self.length, self._path)
        self._torn = False

    def check(self) -> None:
        """StoreFailed if the journal cannot be relied on any more."""
        if self._failure is not None:
            raise StoreFailed(f"the store failed before: {self._failure}") from self._failure

    def rewrite(self, entries: Iterable[tuple[Any, ...]] = ()) -> int:
        """Drop all frames for these, which say the same in less; frames that are owed are written behind them.

        A kill within it may leave the frames that are dropped behind these: who hears all of them comes to the same.

        Returns:
            how many bytes the entries take.

        Raises:
            StoreFull, StoreFailed: not done, the frames are still there. If the new file has taken the old one's
                place and that may not outlive the machine, nothing is appended any more (`check`).
        """
        # By a new file: after a loss of power an old page behind new ones would bring back old frames. Everything
        # that can be refused comes before the rename; frames go to the file that has the name, from then on.
        content = b"".join(map(framed, entries))
        length = len(content)
        if self._before >= 0 and self._owed:  # else those that are beside would be heard behind them
            self._write(self._owed)
        if self._has_base or self._before >= 0:
            self.sync()  # what is heard again behind the entries has to be all of it, after a loss of power, too
        if self._has_base:
            self._replace_base(content)
            content = b""
        content += self._owed
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
                self._names += 1
                names = self._names
            failpoint("journal.after_rename")
            fileutil.close(old)
            self.entries, self.behind = [], []
            self.length, self._torn, self._owed = len(content), False, b""
            try:
                if before >= 0:  # Its frames are older than those that will come.
                    fileutil.close(before)
                    fileutil.unlink(self._beside)  # takes no descriptor, which there may be none of
                fileutil.sync_opened_directory(folder, self._path.parent)
            except StoreError as error:
                self._failure = error
                self._on_failure(error)
                raise
            self._know_synced(names)
        return length

    def sync(self) -> None:
        """Wait until the frames are on disk; StoreFailed if they may not be. Any thread, several at a time."""
        self.check()
        # Beside the lock, for who appends must not wait for the disk.
        fds: list[int] = []
        try:
            with self._descriptor:
                # If one cannot be had, those before it are in the list, and closed.
                fds.extend(fileutil.duplicate(fd, self._path) for fd in (self._before, self._fd) if fd >= 0)
                names, are_synced = self._names, self._names == self._synced_names
            for fd in fds:
                fileutil.fdatasync(fd, self._path)
            if not are_synced:  # Whoever else is about to sync them may fail, or not be done yet.
                fileutil.sync_directory(self._path.parent)
                self._know_synced(names)
        finally:
            for fd in fds:
                fileutil.close(fd)

    def _know_synced(self, names: int) -> None:
        with self._descriptor:
            self._synced_names = max(self._synced_names, names)

    def close(self) -> None:
        """Let go of the file. May be called again."""
        with self._descriptor:
            for fd in (self._before, self._fd):
                if fd >= 0:
                    fileutil.close(fd)
            self._before = self._fd = -1
