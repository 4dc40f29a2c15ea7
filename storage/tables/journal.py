"""An append-only file of frames (`journal_frames`) that survive a process crash at once.

A frame is written with a single write; then the kernel has it. An incomplete frame at the end was not written as a
whole, which a power loss or a full disk can cause, and is cut off. An earlier frame whose bytes have changed is damage:
it is reported, and the readable frames after it are kept separately, so that the table can determine which of them are
still valid.
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
from raymq.storage.tables.journal_frames import decode_frames, encode_frame

_log = logging.getLogger(__name__)


def ignore_failure(_: StoreError) -> None:
    """Ignore a failure of the disk; for a journal without a store."""


class Journal:
    """The file of frames.

    One thread, except for `sync` and `compact`.

    While the content of the frames is being written elsewhere, later frames can go to a second file beside the journal
    (`rotate`), which then replaces the journal (`compact`). A journal that is the only file of its table writes that
    content to a file of its own: the base, whose frames hold the same state in fewer bytes. Opening reads all three:
    the base, the journal and the file beside it.
    """

    def __init__(
        self, path: Path, *, writable: bool, on_failure: Callable[[StoreError], None] = ignore_failure
    ) -> None:
        """Read the existing frames and, if writable, cut off a torn end.

        `entries` are the frames up to the first damage, and `behind` are the readable frames after it. `damage` holds
        the file, offset and bytes of each damaged part.

        Args:
            on_failure: called when the disk has failed so that frames appended from then on might be lost.
        """
        self._path = path
        self._on_failure = on_failure
        self._failure: StoreError | None = None
        self._fd = -1
        self._torn = False
        #: Deferred frames, which are written before the next frame.
        self._pending = b""
        #: The frame that is written before the first frame.
        self._preface = b""
        #: The length of the last appended frame.
        self._newest = 0
        self._descriptor = threading.Lock()
        #: The descriptor of the file that was rotated out; its frames count until `compact`.
        self._before = -1
        self._beside = path.with_name(path.name + ".beside")
        self._base = path.with_name(path.name + ".base")
        self._has_base = False
        #: How many times a file was renamed or created, and how many of these changes are certainly on disk.
        self._names = self._synced_names = 0
        if writable:
            fileutil.make_folder(path.parent)
        self.entries: list[tuple[Any, ...]] = []
        self.behind: list[tuple[Any, ...]] = []
        self.damage: list[tuple[Path, int, int]] = []
        #: The length in bytes of the file that frames are appended to.
        self.length = 0
        try:
            with contextlib.suppress(FileNotFoundError):
                base = fileutil.read_whole(self._base)
                self._has_base = True
                # The base was renamed when it was complete, so its end cannot be missing.
                if (length := self._replay(self._base, base)) < len(base):
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
        self.length = self._replay(path, content)
        if writable:
            self._fd = fileutil.open_for_append(path)
            if self.length < len(content):
                fileutil.truncate(self._fd, self.length, path)

    def _replay(self, path: Path, content: bytes) -> int:
        """Add the frames of a file; return the end of its last frame or damage."""
        found = decode_frames(content)
        if self.damage:
            self.behind += found.entries
        else:
            self.entries += found.entries
        self.behind += found.behind
        for begin, end in found.damage:
            self._note_damage(path, begin, end)
        return found.length

    def _note_damage(self, path: Path, begin: int, end: int) -> None:
        _log.error(
            "%s: %d bytes at %d are not what was written, and the changes in them are lost", path, end - begin, begin
        )
        self.damage.append((path, begin, end - begin))

    @property
    def empty(self) -> bool:
        """Return True if the journal has no frames and none are deferred.

        Frames of the base, which were passed to `compact` or `rewrite`, do not count.
        """
        return self.length == 0 and self._before < 0 and not self._pending

    @property
    def is_rotated(self) -> bool:
        """Return True if frames from before a `rotate` wait for `compact`."""
        return self._before >= 0

    def rotate(self) -> None:
        """Append to the second file from now on.

        Do nothing if the journal is already rotated. Raise StoreFull or StoreFailed if the file cannot be opened; then
        nothing has changed.
        """
        if self._before < 0:
            self.check()
            fd = fileutil.open_for_append(self._beside)
            with self._descriptor:
                self._before, self._fd = self._fd, fd
                self._names += 1
            self.length, self._torn = 0, False

    def compact(self, entries: Iterable[tuple[Any, ...]] | None = None) -> int:
        """Drop the frames from before `rotate`; any thread may call it, one at a time.

        Args:
            entries: the state of these frames and all earlier ones, in fewer bytes. They may include the state of later
                frames, too, if replaying those changes nothing. None: the state is stored safely elsewhere.

        Returns:
            how many bytes the entries take.

        Raises:
            StoreFull, StoreFailed: the second file has not replaced the journal, or perhaps not durably; nothing is
                lost.
        """
        content = b""
        if entries is not None:
            content = b"".join(map(encode_frame, entries))
            self.sync()  # after a power loss the journal must not be older than the base
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
        """Write a frame to the kernel; it survives a process crash when this returns.

        Raises:
            StoreError: opened read-only.
            StoreFull, StoreFailed: not written; the journal is as before.
        """
        if self._fd < 0:
            raise StoreError("the store was opened read-only, or closed")
        self.check()
        frame = encode_frame(entry)
        self._write(self._preface + self._pending + frame)
        self._preface = self._pending = b""
        self._newest = len(frame)

    def undo_append(self) -> None:
        """Remove the last appended frame.

        This takes no disk space, unlike appending a frame that reverts it. Raise StoreFull or StoreFailed if it is
        still there; then it is removed before the next frame is written.
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

    def append_or_defer(self, entry: tuple[Any, ...]) -> bool:
        """Append a frame, or defer it if the append fails.

        A deferred frame is written together with the next frame, before it. Until then a start does not find it, so
        another file must hold its content, too.

        Returns:
            True if the frame is written.
        """
        try:
            self.append(entry)
        except (StoreFull, StoreFailed):
            self._pending += encode_frame(entry)
            return False
        return True

    def set_preamble(self, entry: tuple[Any, ...]) -> None:
        """Set the frame that is written together with the first frame, before it.

        The journal must have no frames.
        """
        self._preface = encode_frame(entry)

    def _cut(self) -> None:
        """Cut off an incomplete frame, because no frame after it could be found."""
        fileutil.truncate(self._fd, self.length, self._path)
        self._torn = False

    def check(self) -> None:
        """Raise StoreFailed if a failure has made the journal unreliable."""
        if self._failure is not None:
            raise StoreFailed(f"the store failed before: {self._failure}") from self._failure

    def rewrite(self, entries: Iterable[tuple[Any, ...]] = ()) -> int:
        """Replace all frames by `entries`, which hold the same state in fewer bytes.

        Deferred frames are written after the entries. A kill during the call may leave the replaced frames after the
        entries; replaying all of them gives the same state.

        Returns:
            how many bytes the entries take.

        Raises:
            StoreFull, StoreFailed: not done, the frames are still there. If the new file has replaced the old one and
                the replacement may not survive a machine crash, every later append fails (`check`).
        """
        # Write a new file: after a power loss, an old page after new pages would restore old frames. All steps that can
        # fail come before the rename; afterwards frames go to the file that has the name.
        content = b"".join(map(encode_frame, entries))
        length = len(content)
        if self._before >= 0 and self._pending:  # otherwise the frames of the second file would be replayed after them
            self._write(self._pending)
        if self._has_base or self._before >= 0:
            self.sync()  # a replay after the entries needs all of the frames, also after a power loss
        if self._has_base:
            self._replace_base(content)
            content = b""
        content += self._pending
        with fileutil.opened_directory(self._path.parent) as folder:
            fd = fileutil.write_temp_file(self._path, content)
            failpoint("journal.before_rename")
            try:
                fileutil.install_temp_file(self._path)
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
            self.length, self._torn, self._pending = len(content), False, b""
            try:
                if before >= 0:  # its frames are older than those that follow
                    fileutil.close(before)
                    fileutil.unlink(self._beside)  # needs no descriptor, since none may be available
                fileutil.sync_opened_directory(folder, self._path.parent)
            except StoreError as error:
                self._failure = error
                self._on_failure(error)
                raise
            self._know_synced(names)
        return length

    def sync(self) -> None:
        """Wait until the frames are on disk; any number of threads may call it.

        Raise StoreFailed if they may not be on disk.
        """
        self.check()
        # Sync outside the lock, because an append must not wait for the disk.
        fds: list[int] = []
        try:
            with self._descriptor:
                # If a duplicate fails, the earlier ones are in the list and get closed.
                fds.extend(fileutil.duplicate(fd, self._path) for fd in (self._before, self._fd) if fd >= 0)
                names, are_synced = self._names, self._names == self._synced_names
            for fd in fds:
                fileutil.fdatasync(fd, self._path)
            if not are_synced:  # another thread's sync of the names may fail or still be running
                fileutil.sync_directory(self._path.parent)
                self._know_synced(names)
        finally:
            for fd in fds:
                fileutil.close(fd)

    def _know_synced(self, names: int) -> None:
        with self._descriptor:
            self._synced_names = max(self._synced_names, names)

    def close(self) -> None:
        """Close the files; may be called more than once."""
        with self._descriptor:
            for fd in (self._before, self._fd):
                if fd >= 0:
                    fileutil.close(fd)
            self._before = self._fd = -1
