"""Copy a state journal of one moment into another directory.

All files of a journal only grow at their ends, and are removed as a whole. So an open descriptor and a length are a
file's content at one moment, whatever is appended or removed later. From the newest whole snapshot and the journals
behind it a start gets exactly the events up to that moment.

A replica receives the copy in a folder beside its own journal, and exchanges the two:

    raymq/state         the journal
    raymq/state.next    the copy, until it is complete
    raymq/state.former  the former journal, until it is removed

While the third one exists, the exchange has begun, and the next opening completes it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgpack

from raymq.storage.errors import StateMismatch
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.mapped_file import sync_path
from raymq.storage.journal.journal_files import former_folder, is_journal_file, next_folder

#: The bytes of a file in one part.
_PART_BYTES: Final = 900 << 10
_REMEDY: Final = (
    "if the master is of an older RayMQ: stop all brokers of the group, install the same RayMQ on their hosts, and "
    "start them"
)
#: The file of the ends of queues all of whose messages have expired; the next opening reads it.
EXPIRED_QUEUES: Final = "expired_queues.json"


class FilePart(NamedTuple):
    """Some bytes of a file of a copy."""

    name: str
    at: int
    content: bytes

    def encode(self) -> bytes:
        """Return the part as bytes; less than 1 MiB."""
        packed: bytes = msgpack.packb(self)
        return packed


def decode_part(encoded: bytes | memoryview) -> FilePart:
    """Return a part. Raise StateMismatch if it is malformed."""
    try:
        name, at, content = msgpack.unpackb(encoded)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise StateMismatch(f"a malformed part of a journal: {error}", remedy=_REMEDY) from None
    if type(name) is not str or not (is_journal_file(name) or name == EXPIRED_QUEUES):
        raise StateMismatch(f"not the name of a file of a journal: {name!r:.100}", remedy=_REMEDY)
    if type(at) is not int or at < 0 or type(content) is not bytes:
        raise StateMismatch(f"a malformed part of the journal's file {name}")
    return FilePart(name, at, content)


def parts_of(name: str, content: bytes) -> Iterator[FilePart]:
    """Return the parts of a file with that content."""
    for at in range(0, max(len(content), 1), _PART_BYTES):
        yield FilePart(name, at, content[at : at + _PART_BYTES])


class JournalCopy:
    """Hold open the files of a journal as they are at one moment.

    `StateJournal.copy` makes it; one thread reads it, any may close it.

    Attributes:
        sequence: the number of the newest event.
        total_bytes: the length of all files.
    """

    def __init__(self, paths: Sequence[Path], sequence: int) -> None:
        """Open the files; the caller holds the journal's locks.

        Raise StoreBusy or StoreFailed if they cannot be opened.
        """
        self.sequence = sequence
        self._reading = threading.Lock()
        self._is_closed = False
        self._files: list[tuple[str, int, int]] = []
        try:
            for path in paths:
                fd = fileutil.open_to_read(path)
                self._files.append((path.name, fd, os.fstat(fd).st_size))
        except BaseException:
            self.close()
            raise
        self.total_bytes = sum(length for _, _, length in self._files)

    def parts(self) -> Iterator[FilePart]:
        """Iterate over the files' bytes in parts of less than 1 MiB.

        Raise StateMismatch if a file is shorter than it was, or the copy was closed.
        """
        for name, fd, length in self._files:
            for at in range(0, max(length, 1), _PART_BYTES):
                wanted = min(_PART_BYTES, length - at)
                with self._reading:
                    if self._is_closed:
                        raise StateMismatch("the copy was closed before it was read")
                    content = os.pread(fd, wanted, at)
                if len(content) < wanted:
                    raise StateMismatch(f"{name} ends at {at + len(content)}, but had {length} bytes")
                yield FilePart(name, at, content)

    def close(self) -> None:
        """Close the files. May be called again."""
        with self._reading:
            is_closed, self._is_closed = self._is_closed, True
            for _, fd, _ in () if is_closed else self._files:
                fileutil.close(fd)


class IncomingJournal:
    """The copy of another directory's journal, while it is received. One thread.

    The journal of the directory stays in use until `install`.

    Attributes:
        folder: the folder of the copy.
    """

    def __init__(self, journal: Path) -> None:
        """Begin without files; `journal` is the folder that will be replaced.

        Raise StoreFull or StoreFailed if the folder of an earlier copy cannot be emptied.
        """
        self._journal = journal
        self.folder = next_folder(journal)
        fileutil.remove_tree(self.folder)
        fileutil.make_folder(self.folder)

    def write(self, part: FilePart) -> None:
        """Write a part.

        Raises:
            StateMismatch: it is not the next one of its file.
            StoreFull, StoreFailed: it could not be written.
        """
        path = self.folder / part.name
        size = path.stat().st_size if path.exists() else 0
        if part.at != size:
            raise StateMismatch(f"the bytes of {part.name} at {part.at} are not the next ones after {size}")
        fileutil.write_at(path, part.at + len(part.content), part.at, part.content)
        failpoint("copy.after_part")

    def sync(self) -> None:
        """Bring the copy to disk. Raise StoreFailed if it may not be."""
        for path in fileutil.paths_in(self.folder):
            sync_path(path)
        fileutil.sync_directory(self.folder)
        fileutil.sync_directory(self.folder.parent)

    def install(self) -> None:
        """Put the synced copy in the place of the journal, which must be closed.

        Raise StoreFull or StoreFailed if that is not complete; the next opening decides.
        """
        failpoint("copy.before_exchange")
        fileutil.make_folder(self._journal)
        fileutil.rename(self._journal, former_folder(self._journal))
        failpoint("copy.within_exchange")
        finish_exchange(self._journal)


def discard_copy(journal: Path) -> None:
    """Remove an incomplete copy. Raise StoreFailed if that fails."""
    if not former_folder(journal).exists():
        fileutil.remove_tree(next_folder(journal))


def finish_exchange(journal: Path) -> None:
    """Complete an exchange that has begun.

    Call it before the journal is opened for writing. Raise StoreFull or StoreFailed if it is not complete.
    """
    former, following = former_folder(journal), next_folder(journal)
    if following.is_dir() and not journal.exists() and former.exists():
        fileutil.rename(following, journal)
        failpoint("copy.after_exchange")
    fileutil.remove_tree(former)


def is_exchanging(journal: Path) -> bool:
    """Return True if a copy has been received in part, or is being installed."""
    return next_folder(journal).exists() or former_folder(journal).exists()
