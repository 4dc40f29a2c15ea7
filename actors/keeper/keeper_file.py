"""A keeper's file: one line that says what it is, and the record.

    raymq-keeper 1 <CRC-32 of the record, 8 hex digits> <length of the record>
    {"cluster": ...}

It is replaced whole, fsynced with its folder. A damaged file is refused, never taken for an empty one: a keeper that
has forgotten what it promised must not vote. Room for that is held back beside it: on a disk that is full brokers are
elected, too.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Final

from raymq.actors.keeper.keeper_record import KeeperRecord
from raymq.storage.errors import InvalidInput, StoreCorrupt
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.ballast import Ballast

_MAGIC: Final = "raymq-keeper 1"
#: More than the longest record of a cluster with a hundred groups.
_ROOM_BYTES: Final = 256 << 10
_REMEDY: Final = (
    "remove the file and have the other keepers take this one in again as a new one; never put back an older copy"
)


class DurableKeeperFile:
    """The file at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ballast = Ballast(path.with_suffix(".ballast"), _ROOM_BYTES)

    def load(self) -> KeeperRecord | None:
        """The record, None if there is no file.

        Raises:
            StoreCorrupt: the file is not what was written.
            StoreBusy, StoreFailed: it cannot be read (now).
        """
        try:
            content = fileutil.read_whole(self._path)
        except FileNotFoundError:
            return None
        head, _, body = content.partition(b"\n")
        expected = _head(body)
        if head != expected:
            raise StoreCorrupt(str(self._path), 0, "a keeper's file that is not whole", remedy=_REMEDY)
        self._ballast.make()
        try:
            return KeeperRecord.decode(body)
        except InvalidInput as error:
            raise StoreCorrupt(str(self._path), len(head) + 1, str(error), remedy=_REMEDY) from error

    def save(self, record: KeeperRecord) -> None:
        """As `KeeperFile.save`."""
        body = record.encode()
        fileutil.make_folder(self._path.parent)
        failpoint("keeper.before_save")
        with self._ballast.at_hand(self._path.parent):
            fileutil.replace(self._path, _head(body) + b"\n" + body)
        self._ballast.make()
        failpoint("keeper.after_save")

    def set_aside(self) -> None:
        """Keep it as `<name>.older-copy`: no start takes that for the keeper's. StoreFull, StoreFailed: not done."""
        fileutil.rename(self._path, self._path.with_suffix(".older-copy"))


def _head(body: bytes) -> bytes:
    return f"{_MAGIC} {zlib.crc32(body):08x} {len(body)}".encode()
