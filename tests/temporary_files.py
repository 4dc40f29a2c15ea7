"""Where the tests' temporary files are: in memory if there is room, so that no test waits for a disk.

On a disk that is nearly full the suite stops: brokers delete early there, and refuse, and tests fail misleadingly.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from raymq.storage.log.retention import DiskUsage

#: pytest makes its folders of temporary files below the folder that this variable names.
ROOT_VARIABLE: Final = "PYTEST_DEBUG_TEMPROOT"
#: The file system in memory that Linux has.
MEMORY: Final = Path("/dev/shm")
#: What may be in use at once: stores of a few processes, and what failed tests leave.
ROOM_BYTES: Final = 4 << 30
#: A broker deletes log files early above 75 %, forces it above 85 %, and refuses writes above 90 %.
MAX_RATIO: Final = 0.80


def choose_root(memory: Path = MEMORY) -> None:
    """Let pytest make its folders in memory, unless the user has named a place or there is too little room."""
    if not {ROOT_VARIABLE, "TMPDIR"} & os.environ.keys() and has_room(memory, psutil.virtual_memory().available):
        os.environ[ROOT_VARIABLE] = str(memory)


def has_room(memory: Path, available_bytes: int) -> bool:
    """Return True if the file system `memory` and what programs leave of the memory have room for all files."""
    return os.access(memory, os.W_OK) and DiskUsage.of(memory).free >= ROOM_BYTES and available_bytes >= 2 * ROOM_BYTES


def folder(basetemp: str | None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder below which temporary files are; `basetemp` is the option of pytest."""
    chosen = Path(basetemp or environment.get(ROOT_VARIABLE) or tempfile.gettempdir())
    return chosen if chosen.exists() else chosen.parent


def reason_to_stop(folder: Path, disk: DiskUsage) -> str | None:
    """What to say where tests that make their files in `folder` would fail for want of room; None: there is enough."""
    if disk.ratio <= MAX_RATIO:
        return None
    return (
        f"the disk of the temporary folder {folder} is {disk.ratio:.0%} full: above {MAX_RATIO:.0%} brokers delete "
        "files early and refuse messages, and tests fail without a fault. Make room, or set TMPDIR to a folder on "
        "another disk"
    )
