"""Places at which a test may kill the process.

With RAYMQ_FAILPOINT=name:3 in its environment a process dies by SIGKILL when it reaches that place for the third
time. Without it a failpoint is a comparison with None.
"""

from __future__ import annotations

import os
import signal
from typing import Final

VARIABLE: Final = "RAYMQ_FAILPOINT"
#: All there are; tests/crash/test_failpoints.py dies at each and finds each in the sources.
NAMES: Final = (
    "append.before_copy",
    "append.before_size",
    "append.one_before_copy",
    "append.one_before_size",
    "roll.before_file",
    "roll.before_blank",
    "roll.after_blank",
    "dispatch.before_queue",
    "dispatch.before_index",
    "dispatch.one_before_index",
    "index.before_slots",
    "index.before_header",
    "index.one_before_slot",
    "index.one_before_header",
    "flush.before_sync",
    "flush.after_sync",
    "checkpoint.before_flush",
    "checkpoint.before_queues",
    "checkpoint.before_journal",
    "checkpoint.before_times",
    "checkpoint.before_state",
    "checkpoint.after_state",
    "replace.before_write",
    "replace.before_sync",
    "replace.before_rename",
    "replace.after_rename",
    "journal.before_write",
    "journal.after_write",
    "journal.before_rename",
    "journal.after_rename",
    "journal.after_base",
    "fold.before_delays",
    "fold.before_clear",
    "settings.before_backup",
    "settings.before_replace",
    "retention.before_detach",
    "retention.before_add",
    "retention.before_remove",
    "retention.before_close",
    "room.before_remove",
    "delete_topic.before_state",
    "delete_topic.before_queues",
    "delete_topic.before_progress",
    "delete_topic.before_settings",
    "open.before_abort",
    "open.before_recovery",
    "open.before_checkpoint",
    "recovery.before_cut",
    "recovery.between_cuts",
    "close.before_fold",
    "close.before_checkpoint",
    "close.before_abort",
)

_armed: str | None = None
_left = 0


def failpoint(name: str) -> None:
    """Die here if a test wants it."""
    if _armed is not None:
        _reached(name)


def arm(text: str) -> None:
    """Choose the place: "name" or "name:times"; "" = none. ValueError for a name that is not in `NAMES`."""
    global _armed, _left
    name, _, times = text.partition(":")
    if name and name not in NAMES:
        raise ValueError(f"{name} is no failpoint")
    _armed, _left = name or None, int(times or 1)


def _reached(name: str) -> None:
    global _left  # noqa: PLW0603
    if name == _armed:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


arm(os.environ.get(VARIABLE, ""))
