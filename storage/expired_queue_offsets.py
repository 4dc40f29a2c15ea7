"""The ends of queues whose messages have all expired, for a replica without data.

The master's log no longer has these ends, and the replica's own copy of them was deleted with its log. So they are sent
with the copy of the state journal, as a file that the master does not have. The next opening reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from raymq.storage.files import fileutil, json_file
from raymq.storage.journal.journal_copy import EXPIRED_QUEUES, FilePart, parts_of

ExpiredQueueOffsets = Mapping[str, Mapping[int, int]]

_MOST: Final = 1 << 48
#: The allowed topic names; no other name may become a folder.
_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")


def parts(ends: ExpiredQueueOffsets) -> Iterator[FilePart]:
    """Return the parts of the file, which are sent with those of the journal."""
    return parts_of(EXPIRED_QUEUES, json.dumps(ends).encode())


def load(path: Path) -> ExpiredQueueOffsets:
    """Return the queue ends in a file; nothing if it is missing or invalid."""
    try:
        saved = json.loads(fileutil.read_whole(path))
        ends = {str(topic): {int(q): int(end) for q, end in queues.items()} for topic, queues in saved.items()}
    except (FileNotFoundError, *json_file.DECODE_ERRORS):
        return {}
    names = all(_TOPIC.fullmatch(topic) for topic in ends)
    numbers = all(0 <= q < 1 << 31 and 0 < end < _MOST for queues in ends.values() for q, end in queues.items())
    return ends if names and numbers else {}
