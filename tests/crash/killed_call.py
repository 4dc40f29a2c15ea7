"""Make a call in a forked process that dies within it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from raymq.storage.failpoints import arm
from raymq.storage.files.file_calls import replaced
from tests.crash.killing_calls import Killed, KillingCalls


def run_killed(failpoint: str, call: Callable[[], object]) -> int:
    """Make a call in a process; return its exit code, or 1."""
    child = os.fork()
    if not child:
        try:
            arm(failpoint)
            call()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def is_killed_at_change(directory: Path, changes: int, call: Callable[[], object]) -> bool:
    """Make a call in a process that dies after so many file changes.

    Return False if there were not so many.
    """
    child = os.fork()
    if not child:
        status = 1
        try:
            with replaced(calls := KillingCalls()):
                calls.arm(directory, changes)
                try:
                    call()
                    status = 0
                except Killed:
                    calls.take_place()
                    status = 2
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 2)
    return status == 2
