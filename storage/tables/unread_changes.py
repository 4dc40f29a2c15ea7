"""Changes of settings that a journal tells and that cannot be read: what is known of each, and where it is kept."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from raymq.storage.errors import StoreError
from raymq.storage.files import fileutil

_log = logging.getLogger(__name__)
#: Of a change so much is told in a log.
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class UnreadChange:
    """One of them.

    Attributes:
        counter: which version of the table it should have made.
        name: the setting that should have been changed; empty where not even that can be read.
        told: what the journal says.
        reason: why it cannot be read.
    """

    counter: int
    name: str
    told: str
    reason: str

    def __str__(self) -> str:
        what = f"the change of {self.name}" if self.name else f"a change ({self.told[:_SHOWN]})"
        return f"{what} cannot be read: {self.reason[:_SHOWN]}"


def keep(change: UnreadChange, place: Path) -> Path | None:
    """Write a change to a file whose name begins as `place`, durably; the file.

    None if the disk does not take it: the log has told of it, and no start fails for that.
    """
    content = json.dumps(asdict(change)).encode()
    file = place.with_name(f"{place.name}.{change.counter}")
    number = 1
    try:
        while (
            file.exists() and fileutil.read_whole(file) != content
        ):  # it is kept from an earlier start, if it is equal
            number += 1
            file = place.with_name(f"{place.name}.{change.counter}.{number}")
        fileutil.make_folder(file.parent)
        fileutil.replace(file, content)
    except StoreError as error:
        _log.warning("a change that cannot be read is not kept: %s", error)
        return None
    return file
