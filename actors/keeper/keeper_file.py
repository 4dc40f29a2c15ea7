"""A keeper's file: a header line and the record.

    raymq-keeper 1 <CRC-32 of the record, 8 hex digits> <length of the record>
    {"cluster": ...}

Each save replaces the whole file, and fsyncs it and its directory. A damaged file is refused, and never treated as an
empty one: a keeper that has lost its promises must not vote. Disk space for one save is reserved in a file beside it,
because elections have to work on a full disk as well.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Final

from raymq.actors.keeper.keeper_record import KeeperRecord
from raymq.storage.errors import InvalidInput, StoreCorrupt
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.disk_reserve import DiskReserve

_MAGIC: Final = "raymq-keeper 1"
#: In bytes: more than the longest record of a cluster with a hundred groups.
_ROOM_BYTES: Final = 256 << 10
_REMEDY: Final = "remove the file and add this keeper again as a new one; never put back an older copy"


class DurableKeeperFile:
    """The keeper's file at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._disk_reserve = DiskReserve(path.with_suffix(".ballast"), _ROOM_BYTES)

    def load(self) -> KeeperRecord | None:
        """Return the record; None if there is no file.

        Raises:
            StoreCorrupt: the file is damaged.
            StoreBusy, StoreFailed: the file cannot be read (now).
        """
        try:
            content = fileutil.read_whole(self._path)
        except FileNotFoundError:
            return None
        head, _, body = content.partition(b"\n")
        expected = _head(body)
        if head != expected:
            raise StoreCorrupt(str(self._path), 0, "the keeper's file is incomplete or damaged", remedy=_REMEDY)
        self._disk_reserve.make()
        try:
            return KeeperRecord.decode(body)
        except InvalidInput as error:
            raise StoreCorrupt(str(self._path), len(head) + 1, str(error), remedy=_REMEDY) from error

    def save(self, record: KeeperRecord) -> None:
        """Replace the record durably, as `KeeperFile.save` describes."""
        body = record.encode()
        fileutil.make_folder(self._path.parent)
        failpoint("keeper.before_save")
        with self._disk_reserve.releasable_for(self._path.parent):
            fileutil.replace(self._path, _head(body) + b"\n" + body)
        self._disk_reserve.make()
        failpoint("keeper.after_save")

    def quarantine(self) -> None:
        """Rename the file to `<name>.older-copy`, so that no start loads it.

        Raise StoreFull or StoreFailed if it was not renamed.
        """
        fileutil.rename(self._path, self._path.with_suffix(".older-copy"))


def _head(body: bytes) -> bytes:
    return f"{_MAGIC} {zlib.crc32(body):08x} {len(body)}".encode()
