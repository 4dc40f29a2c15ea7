"""How far the queues are all of whose messages have expired, for a replica that begins anew.

Nothing in its master's log tells of that any more, and what its own had told went with its log. So it comes with the
snapshot of the state, as a file that the master has not, and is put aside for the store to be opened with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from raymq.storage.files import fileutil, json_file
from raymq.storage.state.snapshot import NOT_NOTED, packed
from raymq.storage.state.state_files import OURS

QueueEnds = Mapping[str, Mapping[int, int]]

#: What it is called in a snapshot.
SENT: Final = NOT_NOTED
_PIECE_BYTES: Final = 900 << 10
_MOST: Final = 1 << 48
#: What a topic may be called, and nothing else becomes the name of a folder.
_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")


def parts(ends: QueueEnds) -> Iterator[bytes]:
    """Parts of a snapshot: behind those of the state."""
    content = json.dumps(ends).encode()
    for at in range(0, len(content), _PIECE_BYTES):
        yield from packed([[SENT, at, content[at : at + _PIECE_BYTES]]])


def put_aside(directory: Path) -> None:
    """The snapshot that has come is whole; it is for the caller to sync the folder."""
    if (directory / SENT).exists():
        fileutil.move(directory / SENT, aside_of(directory))


def aside_of(directory: Path) -> Path:
    """What the next opening of the store goes by, and removes."""
    return directory / OURS / "expired_queues.json"


def load(path: Path) -> QueueEnds:
    """What is told there; nothing where nothing can be read."""
    try:
        told = json.loads(fileutil.read_whole(path))
        ends = {str(topic): {int(q): int(end) for q, end in queues.items()} for topic, queues in told.items()}
    except (FileNotFoundError, *json_file.ANOTHER_FORM):
        return {}
    names = all(_TOPIC.fullmatch(topic) for topic in ends)
    numbers = all(0 <= q < 1 << 31 and 0 < end < _MOST for queues in ends.values() for q, end in queues.items())
    return ends if names and numbers else {}
