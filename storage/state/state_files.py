"""Which files of a store directory are state, the same on a master and its replicas, and which are each broker's own.

State is all below `config/` and `raymq/`, so that a table that is new is replicated without a word, but for these: what
follows from the log on each broker, what is known of its machine, and who it is.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Final

CONFIG: Final = "config"
OURS: Final = "raymq"
#: Within `raymq/`: files with all that is made beside them (`.tmp`, `.bak`), and folders with all that is in them.
OWN: Final = frozenset(
    {
        # what was derived from the log here, and of which part of it
        *("state.json", "deleted_queues", "damaged", "cut.json", "rebuild_queues", "delay_levels_aside.json"),
        "expired_queues.json",
        # the disk, the machine's clock
        *("healthy", "ballast", "clock.json"),
        # who this broker is, in which epochs of its masters the log was made, and how far the state has come
        *("broker.json", "replica.json", "epochs", "state_sequence", "state_snapshot"),
    }
)
_BESIDE: Final = (".tmp", ".bak")
#: The longest path, in characters.
MOST_PATH: Final = 1024


@lru_cache(maxsize=4096)
def is_state(path: str) -> bool:
    """Whether a file or folder at this path below the store directory is state; False for what is no such path."""
    if not 0 < len(path) <= MOST_PATH or "\0" in path:
        return False
    parts = path.split("/")
    if len(parts) < 2 or any(part in ("", ".", "..") for part in parts):
        return False
    return parts[0] == CONFIG or (parts[0] == OURS and _without_ending(parts[1]) not in OWN)


def folders_above(path: str) -> list[str]:
    """The folders in which a path lies, the outermost first."""
    found = []
    at = path.find("/")
    while at >= 0:
        found.append(path[:at])
        at = path.find("/", at + 1)
    return found


def _without_ending(name: str) -> str:
    while name.endswith(_BESIDE):
        name = name[:-4]
    return name


def marker_of(directory: Path) -> Path:
    """The file that is there while a replica loads a snapshot."""
    return directory / OURS / "state_snapshot"


def levels_aside_of(directory: Path) -> Path:
    """What `delay_levels.json` told of a replica's log before that snapshot was begun."""
    return directory / OURS / "delay_levels_aside.json"
