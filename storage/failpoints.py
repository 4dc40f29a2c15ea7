"""Points in the code at which a test can kill the process.

With RAYMQ_FAILPOINT=name:3 in its environment a process kills itself by SIGKILL when it reaches that point for the
third time. Without the variable a failpoint is a comparison with None.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Final

VARIABLE: Final = "RAYMQ_FAILPOINT"
#: All failpoints; tests/crash/test_failpoints.py crashes at each and finds each in the sources.
NAMES: Final = (
    "append.before_copy",
    "append.before_size",
    "append.few_before_copy",
    "append.few_before_size",
    "truncation.before_order",
    "truncation.after_order",
    "truncation.before_epochs",
    "truncation.before_done",
    "truncation.after_done",
    "format.before_spare",
    "format.before_file",
    "format.after_file",
    "format.before_snapshot",
    "format.before_removal",
    "export.before_file",
    "open.before_clamp",
    "claim.after_nonce",
    "claim.after_register",
    "claim.after_done",
    "copy.after_part",
    "copy.before_exchange",
    "copy.within_exchange",
    "copy.after_exchange",
    "copy.before_epochs",
    "copy.after_epochs",
    "wipe.after_order",
    "wipe.before_log",
    "wipe.before_done",
    "leader.before_epoch",
    "leader.before_lease",
    "leader.before_loss",
    "leader.before_open",
    "leader.before_serving",
    "leader.before_tables",
    "follow.before_copy",
    "follow.before_size",
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
    "keeper.before_save",
    "keeper.after_save",
    "state.before_write",
    "state.after_write",
    "state.before_snapshot",
    "state.after_snapshot",
    "state.before_removal",
    "settings.before_backup",
    "settings.before_replace",
    "retention.before_detach",
    "retention.before_add",
    "retention.before_remove",
    "retention.before_close",
    "cleanup.before_remove",
    "delete_topic.before_state",
    "delete_topic.before_queues",
    "delete_topic.after_state",
    "write.before_record",
    "write.after_record",
    "write.before_series",
    "staged.before_chunk",
    "staged.before_commit",
    "staged.after_commit",
    "staged.before_done",
    "staged.between_chunks",
    "staged.before_close",
    "staged.after_close",
    "staged_folders.before_rename",
    "staged_folders.after_rename",
    "staged_folders.before_places",
    "staged_folders.before_removal",
    "open.before_abort",
    "open.before_recovery",
    "open.before_checkpoint",
    "recovery.before_cut",
    "recovery.between_cuts",
    "backup.after_state",
    "backup.after_log_file",
    "backup.before_manifest",
    "backup.after_manifest",
    "backup.before_object_removed",
    "restore.before_file",
    "restore.before_end",
    "close.before_compaction",
    "close.before_checkpoint",
    "close.before_abort",
)

_armed: str | None = None
_left = 0
_then: Callable[[], None]


def failpoint(name: str) -> None:
    """Kill the process here if a test has armed this point."""
    if _armed is not None:
        _reached(name)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(text: str, then: Callable[[], None] = _die) -> None:
    """Arm a failpoint: "name" or "name:times"; "" disarms.

    Raise ValueError for a name that is not in `NAMES`.

    Args:
        then: what happens at the point, in the thread that reaches it.
    """
    global _armed, _left, _then
    name, _, times = text.partition(":")
    if name and name not in NAMES:
        raise ValueError(f"{name} is not a failpoint")
    _armed, _left, _then = name or None, int(times or 1), then


def _reached(name: str) -> None:
    global _left  # noqa: PLW0603
    if name == _armed:
        _left -= 1
        if _left == 0:
            _then()


arm(os.environ.get(VARIABLE, ""))
