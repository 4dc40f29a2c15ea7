"""Keep the states of idempotent producers, which can be derived again, as frames.

A frame is written with a single write; then the kernel has it. An incomplete frame at the end is cut off. An earlier
frame whose bytes have changed is damage: it is reported, and the readable frames after it are kept separately.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from raymq.storage.errors import StoreError
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.journal.journal_frames import decode_frames, encode_frame

_log = logging.getLogger(__name__)


class FrameFile:
    """An open file of frames; one thread at a time.

    Attributes:
        entries: the frames up to the first damage that were found at the opening.
        behind: the readable frames after it.
        is_damaged: whether there is damage.
        length: the length of the file in bytes.
    """

    def __init__(self, path: Path, *, writable: bool) -> None:
        """Read the existing frames and, if writable, cut off a torn end.

        Raises:
            StoreFull, StoreFailed, StoreBusy: it cannot be read or opened (now).
        """
        self._path = path
        self._fd = -1
        self._torn = False
        content = b""
        with contextlib.suppress(FileNotFoundError):
            content = fileutil.read_whole(path)
        found = decode_frames(content)
        for begin, end in found.damage:
            _log.error("%s: %d bytes at %d are not what was written", path, end - begin, begin)
        self.entries, self.behind, self.is_damaged = found.entries, found.behind, bool(found.damage)
        self.length = found.length
        if writable:
            fileutil.make_folder(path.parent)
            self._fd = fileutil.open_for_append(path)
            try:
                self._cut()
            except BaseException:
                self.close()
                raise

    def append(self, entry: tuple[Any, ...]) -> None:
        """Write a frame to the kernel; it survives a process crash when this returns.

        Raises:
            StoreError: opened read-only, or closed.
            StoreFull, StoreFailed: not written; the file is as before.
        """
        if self._fd < 0:
            raise StoreError("the store was opened read-only, or closed")
        if self._torn:
            self._cut()
        frame = encode_frame(entry)
        failpoint("frames.before_write")
        try:
            fileutil.write_all(self._fd, frame, self._path)
        except StoreError:
            self._torn = True
            with contextlib.suppress(StoreError):
                self._cut()
            raise
        failpoint("frames.after_write")
        self.length += len(frame)

    def rewrite(self, entries: Iterable[tuple[Any, ...]]) -> None:
        """Replace all frames by `entries`.

        Raises:
            StoreFull, StoreFailed: the former frames are still there; or the new file may not survive a machine crash,
                which leaves the former one.
        """
        content = b"".join(map(encode_frame, entries))
        fd = fileutil.write_temp_file(self._path, content)
        failpoint("frames.before_rename")
        try:
            fileutil.install_temp_file(self._path)
        except BaseException:
            fileutil.close(fd)
            raise
        former, self._fd = self._fd, fd
        self.length, self._torn = len(content), False
        fileutil.close(former)
        failpoint("frames.after_rename")
        fileutil.sync_directory(self._path.parent)

    def close(self) -> None:
        """Close the file; may be called more than once."""
        if self._fd >= 0:
            fileutil.close(self._fd)
        self._fd = -1

    def _cut(self) -> None:
        """Cut off an incomplete frame, because no frame after it could be found."""
        fileutil.truncate(self._fd, self.length, self._path)
        self._torn = False
