"""The ends of queues whose messages have all expired, for a replica without data.

The master's log no longer has these ends, and the replica's own copy of them was deleted with its log. So they are sent
with the snapshot of the state, as a file that the master does not have. The replica moves it to the place from which
the store reads it at the next opening.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from raymq.storage.files import fileutil, json_file
from raymq.storage.state.state_files import RAYMQ_FOLDER
from raymq.storage.state.state_snapshot import QUEUE_ENDS_PATH, encode_parts

ExpiredQueueOffsets = Mapping[str, Mapping[int, int]]

#: The path of the file in a snapshot.
SENT: Final = QUEUE_ENDS_PATH
_PIECE_BYTES: Final = 900 << 10
_MOST: Final = 1 << 48
#: The allowed topic names; no other name may become a folder.
_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")


def parts(ends: ExpiredQueueOffsets) -> Iterator[bytes]:
    """Iterate over the file's snapshot parts, which are sent after those of the state."""
    content = json.dumps(ends).encode()
    for at in range(0, len(content), _PIECE_BYTES):
        yield from encode_parts([[SENT, at, content[at : at + _PIECE_BYTES]]])


def stage_expired_queues(directory: Path) -> None:
    """Move the file of a complete snapshot to where the next opening reads it.

    The caller syncs the folder.
    """
    if (directory / SENT).exists():
        fileutil.move(directory / SENT, expired_queues_file(directory))


def expired_queues_file(directory: Path) -> Path:
    """Return the path of the file that the next opening reads and removes."""
    return directory / RAYMQ_FOLDER / "expired_queues.json"


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
