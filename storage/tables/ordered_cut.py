"""A cut of the log that was ordered: what lies behind a place never was, and the next opening makes that true.

The order is on disk before anything is cut, and is removed after all is cut, on disk, and before a byte is appended. So
a death at any moment leaves the log as it was, or an order that the next opening carries out again from its beginning;
what was cut off never comes back.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from raymq.storage.errors import StoreCorrupt
from raymq.storage.files import fileutil, json_file

_REMEDY: Final = "take the directory out of the group and let the replica begin with an empty one"


@dataclass(frozen=True, slots=True)
class OrderedCut:
    """What is to be cut.

    Attributes:
        offset: the log ends there; a record begins, or the log ended.
        last_epoch: newer epochs of the master's than this one never were; None: there are none that are known.
    """

    offset: int
    last_epoch: int | None = None

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """The order that is there; StoreCorrupt: there is one, and nobody can say which."""
        try:
            told = json.loads(fileutil.read_whole(path))
            epoch = told["lastEpoch"]
            return cls(int(told["offset"]), None if epoch is None else int(epoch))
        except FileNotFoundError:
            return None
        except json_file.ANOTHER_FORM as error:
            raise StoreCorrupt(
                str(path), 0, f"an order to cut the log, of another form: {error}", remedy=_REMEDY
            ) from None

    def save(self, path: Path) -> None:
        """Give the order, durably; StoreFull, StoreFailed."""
        # Without the `.bak` of other files: an older order is carried out.
        fileutil.replace(path, json.dumps({"offset": self.offset, "lastEpoch": self.last_epoch}).encode())
