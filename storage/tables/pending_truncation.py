"""An ordered truncation of the log, which the next opening completes.

The records after an offset are treated as if they had never been written. The order is written to disk before anything
is truncated. It is removed after everything is truncated on disk, and before a byte is appended. So a crash at any
moment leaves either the unchanged log or an order that the next opening carries out again from its beginning. The
truncated records never come back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

import msgspec

from raymq.storage import typed_json
from raymq.storage.errors import InvalidInput, StoreCorrupt
from raymq.storage.files import fileutil

_REMEDY: Final = "take the directory out of the group and let the replica begin with an empty one"


class PendingTruncation(msgspec.Struct, frozen=True, rename="camel"):
    """The order to truncate the log.

    Attributes:
        offset: the new end of the log; a record begins there, or the log ended there.
        last_epoch: newer leader epochs than this one are removed; None: no epochs are known.
    """

    offset: int
    last_epoch: int | None = None

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """Return the pending order, or None if there is none.

        Raise StoreCorrupt if there is an order that cannot be read.
        """
        try:
            return typed_json.decode(fileutil.read_whole(path), cls, "order", "an offset and an epoch")
        except FileNotFoundError:
            return None
        except InvalidInput as error:
            raise StoreCorrupt(
                str(path), 0, f"a malformed order to truncate the log: {error}", remedy=_REMEDY
            ) from None

    def save(self, path: Path) -> None:
        """Write the order durably.

        Raise StoreFull or StoreFailed if it cannot be written.
        """
        # Other files have a `.bak`; this one has none, because an older order is already carried out.
        fileutil.replace(path, typed_json.encode(self))
