"""The state of a store directory at one moment, beside its log, for a backup.

It is the copy of the state journal, and files that help to open a restored store: RayMQ's and RocketMQ's checkpoint,
the timer log, and the files in `config/`. A restored store begins with the journal; the other files are copies of what
the journal and the log have.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgpack

from raymq.storage.errors import StateMismatch
from raymq.storage.files import fileutil
from raymq.storage.journal.journal_copy import JournalCopy
from raymq.storage.store_paths import StorePaths

_CONFIG: Final = "config"
_OWN: Final = "raymq"
#: The folders of a store directory that have state.
STATE_FOLDERS: Final = (_CONFIG, _OWN)
#: Names within `raymq/` that no backup has, also with an ending and with all of their content: what a broker derives
#: from its log, what belongs to its disk and machine, and its identity.
_BROKER_LOCAL: Final = frozenset(
    {
        *("deleted_queues", "damaged", "cut.json", "rebuild_queues", "state.next", "state.former"),
        *("healthy", "ballast"),
        *("broker.json", "replica.json", "epochs"),
        # of former versions
        *("delay_levels_aside.json", "expired_queues.json", "state_sequence", "state_snapshot", "no_tables"),
        "clock.json",
    }
)
_ENDINGS: Final = (".tmp", ".bak", ".base", ".beside")
_MAX_PATH_LENGTH: Final = 1024
_PART_BYTES: Final = 900 << 10


def is_backup_path(path: str) -> bool:
    """Return True if a backup may have a file or folder there.

    That includes the files of former versions.
    """
    if not 0 < len(path) <= _MAX_PATH_LENGTH or "\0" in path:
        return False
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return False
    if len(parts) == 1:
        return path == "checkpoint"
    name = parts[1]
    while name.endswith(_ENDINGS):
        name = name.rpartition(".")[0]
    return parts[0] == _CONFIG or (parts[0] == _OWN and name not in _BROKER_LOCAL)


class BackupState:
    """The state of a directory at the moment of construction; one thread.

    Attributes:
        log_end: where the log ended; the state refers to no message after it.
        total_bytes: the size of the state in bytes.
    """

    def __init__(self, directory: Path, journal: JournalCopy, log_end: int) -> None:
        """Read the small files; the caller is the thread that appends to the log.

        Args:
            journal: made at the same moment; closed by `close`.

        Raises:
            StoreBusy, StoreFailed: a file cannot be read.
        """
        self.log_end = log_end
        paths = StorePaths(directory)
        self._copies = {_name_of(paths.state_journal, directory): journal}
        self._files: dict[str, bytes] = {}
        try:
            for path in (paths.state, paths.checkpoint, *fileutil.paths_in(paths.config)):
                name = _name_of(path, directory)
                if path.is_file() and is_backup_path(name):
                    self._files[name] = fileutil.read_whole(path)
            if (timers := _timers(paths.timers)) is not None:
                self._copies[_name_of(paths.timers, directory)] = timers
        except BaseException:
            self.close()
            raise
        copied = sum(copy.total_bytes for copy in self._copies.values())
        self.total_bytes = copied + sum(map(len, self._files.values()))

    def parts(self) -> Iterator[bytes]:
        """Iterate over the state in parts of less than 1 MiB for `read_part`.

        Raise StateMismatch if bytes of that moment are gone.
        """
        for path, content in self._files.items():
            yield from parts_of(path, content)
        for folder, copy in self._copies.items():
            for name, at, content in copy.parts():
                yield _part(f"{folder}/{name}", at, content)

    def close(self) -> None:
        """Close the files. May be called again."""
        for copy in self._copies.values():
            copy.close()


def _name_of(path: Path, directory: Path) -> str:
    return path.relative_to(directory).as_posix()


def _timers(folder: Path) -> JournalCopy | None:
    """Return a copy of the timer log; None while its files are exchanged.

    The files of the timer log, too, only grow, or are replaced or removed as a whole.
    """
    paths = sorted(fileutil.paths_in(folder), key=lambda path: path != folder / "state.json")  # it names the others
    try:
        return JournalCopy([path for path in paths if not path.name.endswith(".tmp")], 0)
    except FileNotFoundError:
        return None


def parts_of(path: str, content: bytes) -> Iterator[bytes]:
    """Return the parts of a file."""
    for at in range(0, max(len(content), 1), _PART_BYTES):
        yield _part(path, at, content[at : at + _PART_BYTES])


def _part(path: str, at: int, content: bytes) -> bytes:
    packed: bytes = msgpack.packb((path, at, content), unicode_errors="surrogateescape")
    return packed


def read_part(part: bytes | memoryview) -> tuple[str, int, bytes]:
    """Return path, offset and bytes of a part; raise StateMismatch if malformed."""
    try:
        path, at, content = msgpack.unpackb(part, unicode_errors="surrogateescape")
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise StateMismatch(f"a malformed part of a backup: {error}") from None
    if not isinstance(path, str) or not is_backup_path(path):
        raise StateMismatch(f"not a path of a backup: {path!r:.200}")
    if type(at) is not int or type(content) is not bytes or at < 0:
        raise StateMismatch(f"a malformed part of {path!r:.200}")
    return path, at, content
