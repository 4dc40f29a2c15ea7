"""Decide which files of a store are replicated state, and which are local.

State is everything below `config/` and `raymq/`, so that a new table is replicated without further code, except for
these files: data that each broker derives from its log, data about its machine, and its identity.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Final

CONFIG: Final = "config"
RAYMQ_FOLDER: Final = "raymq"
#: Names within `raymq/`: files with their `.tmp` and `.bak` versions, and folders with all of their content.
BROKER_LOCAL: Final = frozenset(
    {
        # derived from the log on this broker, and the log offsets of that data
        *("state.json", "deleted_queues", "damaged", "cut.json", "rebuild_queues", "delay_levels_aside.json"),
        *("expired_queues.json", "timers"),
        # about the disk and the machine's clock
        *("healthy", "ballast", "clock.json"),
        # this broker's identity, the leader epochs of its log, and the sequence number of its state
        *("broker.json", "replica.json", "epochs", "state_sequence", "state_snapshot"),
    }
)
#: The tables of format 1 (storage/format_1.py): files with their versions, and folders.
FORMAT_1: Final = frozenset(
    {
        *(f"{table}.journal" for table in ("deletions", "topics", "groups", "progress", "in_flight")),
        *("homes", "members", "streams", "writes", "series", "transaction_checks"),
    }
)
#: The staged rows of format 2 (actors/broker/core/appending/staged_folders.py).
STAGED_FOLDER: Final = "staged"
STAGED_FOLDER_TAKEN: Final = "staged_taken"
_FORMER: Final = FORMAT_1 | {STAGED_FOLDER, STAGED_FOLDER_TAKEN}
_BESIDE: Final = (".tmp", ".bak", ".base", ".beside")
#: The longest path, in characters.
MAX_PATH_LENGTH: Final = 1024


@lru_cache(maxsize=4096)
def is_state(path: str) -> bool:
    """Return True if the path is that of a state file or folder.

    The path is relative to the store directory. Return False for an invalid path.
    """
    name = _name_in(path)
    return name == "" or (name is not None and name not in BROKER_LOCAL and name not in _FORMER)


@lru_cache(maxsize=4096)
def is_stored_state(path: str) -> bool:
    """Return True if the path is state, now or in a former format."""
    return is_state(path) or _name_in(path) in _FORMER


def is_state_of_format_1(path: str) -> bool:
    """Return True if the path is that of a table of format 1."""
    return _name_in(path) in FORMAT_1


def _name_in(path: str) -> str | None:
    """Return a path's entry of `raymq/`, "" below `config/`, else None."""
    if not 0 < len(path) <= MAX_PATH_LENGTH or "\0" in path:
        return None
    parts = path.split("/")
    if len(parts) < 2 or any(part in ("", ".", "..") for part in parts):
        return None
    if parts[0] == CONFIG:
        return ""
    return _without_ending(parts[1]) if parts[0] == RAYMQ_FOLDER else None


def folders_above(path: str) -> list[str]:
    """Return the parent folders of a path, the outermost first."""
    found = []
    at = path.find("/")
    while at >= 0:
        found.append(path[:at])
        at = path.find("/", at + 1)
    return found


def _without_ending(name: str) -> str:
    while name.endswith(_BESIDE):
        name = name.rpartition(".")[0]
    return name


def snapshot_marker(directory: Path) -> Path:
    """Return the file that exists while a replica loads a snapshot."""
    return directory / RAYMQ_FOLDER / "state_snapshot"


def saved_delay_levels(directory: Path) -> Path:
    """Return the copy of the delay levels from before the replica's snapshot was begun."""
    return directory / RAYMQ_FOLDER / "delay_levels_aside.json"
