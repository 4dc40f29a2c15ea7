"""Unreadable changes of settings in a journal, and the files that keep them."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from raymq.storage.errors import StoreError
from raymq.storage.files import fileutil

_log = logging.getLogger(__name__)
#: How many characters of a change are logged.
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class UnreadableChange:
    """One unreadable change of settings.

    Attributes:
        counter: the version of the table that the change should have made.
        name: the setting that should have been changed; empty if the name cannot be read either.
        told: the content of the journal.
        reason: why it cannot be read.
    """

    counter: int
    name: str
    told: str
    reason: str

    def __str__(self) -> str:
        what = f"the change of {self.name}" if self.name else f"a change ({self.told[:_SHOWN]})"
        return f"{what} cannot be read: {self.reason[:_SHOWN]}"


def save_unreadable(change: UnreadableChange, place: Path) -> Path | None:
    """Write a change durably to a file and return the file's path.

    The file's name begins as `place`. Return None if the disk refuses it: the program's log also reports the change,
    and a start must not fail because of it.
    """
    content = json.dumps(asdict(change)).encode()
    file = place.with_name(f"{place.name}.{change.counter}")
    number = 1
    try:
        while (
            file.exists() and fileutil.read_whole(file) != content
        ):  # an earlier start has kept the change if the content is equal
            number += 1
            file = place.with_name(f"{place.name}.{change.counter}.{number}")
        fileutil.make_folder(file.parent)
        fileutil.replace(file, content)
    except StoreError as error:
        _log.warning("a change that cannot be read could not be saved: %s", error)
        return None
    return file
