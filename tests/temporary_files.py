"""Choose the folder of the tests' temporary files: in memory if it has room.

On a nearly full disk the suite stops: brokers would delete files early and refuse writes, and tests would fail.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from raymq.storage.log.retention import DiskUsage

#: The variable with the folder below which pytest creates its temporary folders.
ROOT_VARIABLE: Final = "PYTEST_DEBUG_TEMPROOT"
#: The file system in memory of Linux.
MEMORY: Final = Path("/dev/shm")
#: The space needed at once: stores of a few processes, and files of failed tests.
ROOM_BYTES: Final = 4 << 30
#: A broker deletes log files early above 75 %, forces it above 85 %, and refuses writes above 90 %.
MAX_RATIO: Final = 0.80


def choose_root(memory: Path = MEMORY) -> None:
    """Let pytest use memory, unless the user named a folder or memory is short."""
    if not {ROOT_VARIABLE, "TMPDIR"} & os.environ.keys() and has_room(memory, psutil.virtual_memory().available):
        os.environ[ROOT_VARIABLE] = str(memory)


def has_room(memory: Path, available_bytes: int) -> bool:
    """Return whether the file system `memory` and the available memory have room for all files."""
    return os.access(memory, os.W_OK) and DiskUsage.of(memory).free >= ROOM_BYTES and available_bytes >= 2 * ROOM_BYTES


def folder(basetemp: str | None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the temporary files; `basetemp` is the option of pytest."""
    chosen = Path(basetemp or environment.get(ROOT_VARIABLE) or tempfile.gettempdir())
    return chosen if chosen.exists() else chosen.parent


def reason_to_stop(folder: Path, disk: DiskUsage) -> str | None:
    """Return the error text if `folder` lacks space for the tests, else None."""
    if disk.ratio <= MAX_RATIO:
        return None
    return (
        f"the disk of the temporary folder {folder} is {disk.ratio:.0%} full: above {MAX_RATIO:.0%} brokers delete "
        "files early and refuse messages, and tests fail without a fault. Make room, or set TMPDIR to a folder on "
        "another disk"
    )
