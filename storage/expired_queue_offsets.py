"""The ends of queues whose messages have all expired, for a replica without data.

The master's log no longer has these ends, and the replica's own copy of them was deleted with its log. So they are sent
with the copy of the state journal, as a file that the master does not have. The next opening reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from raymq.storage import typed_json
from raymq.storage.errors import InvalidInput
from raymq.storage.files import fileutil
from raymq.storage.journal.journal_copy import EXPIRED_QUEUES, FilePart, parts_of

ExpiredQueueOffsets = Mapping[str, Mapping[int, int]]

#: The allowed topic names; no other name may become a folder.
_Topic = Annotated[str, Meta(pattern=r"^[%|a-zA-Z0-9_-]{1,255}\Z")]
_QueueId = Annotated[int, Meta(ge=0, lt=1 << 31)]
_End = Annotated[int, Meta(gt=0, lt=1 << 48)]


def parts(ends: ExpiredQueueOffsets) -> Iterator[FilePart]:
    """Return the parts of the file, which are sent with those of the journal."""
    return parts_of(EXPIRED_QUEUES, json.dumps(ends).encode())


def load(path: Path) -> ExpiredQueueOffsets:
    """Return the queue ends in a file; nothing if it is missing or invalid."""
    try:
        content = fileutil.read_whole(path)
        return typed_json.decode(content, dict[_Topic, dict[_QueueId, _End]], str(path), "ends of queues")
    except (FileNotFoundError, InvalidInput):
        return {}
