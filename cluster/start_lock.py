"""One start at a time: a lock file of this user for each namespace, which says whose start it is."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

import psutil

from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.cluster import found

#: How long a start that goes on is waited for: its actors may have stores to recover.
WAIT_SECONDS = 120.0
#: How long one is waited for whose process was stopped (Ctrl-Z, a debugger): somebody may let it go on.
STOPPED_SECONDS = 5.0
_POLL_SECONDS = 0.05


@contextlib.contextmanager
def alone(
    namespace: str,
    wait: float = WAIT_SECONDS,
    wait_stopped: float = STOPPED_SECONDS,
    doing: str = "starting the cluster",
) -> Iterator[None]:
    """Keep other starts of this user in this namespace waiting: they find a whole cluster then.

    Args:
        namespace: the cluster's.
        wait: how many seconds another start is waited for at most;
        wait_stopped: and if its process stands still for so long, no longer.
        doing: what the others are said to be doing.

    Raises:
        BrokerUnavailable: another start has not come to its end in time; it names the process.
        InvalidInput: there is no folder for the lock, or its file system has no locks.
    """
    try:
        file = os.open(found.lock_file(namespace), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidInput(found.HOME, "a folder of this user's own that can be written", str(error)) from error
    try:
        _take(file, f"{doing} in namespace {namespace}", wait, wait_stopped)
        with contextlib.suppress(OSError):  # a full disk: others cannot say whose start it is, and wait all the same
            os.ftruncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)
        yield
    finally:
        # Not by closing alone: a process that was forked meanwhile has the lock, too, and it goes on.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)


def _take(file: int, doing: str, wait: float, wait_stopped: float) -> None:
    began = stands_since = time.monotonic()
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        except OSError as error:
            raise InvalidInput(found.HOME, "a folder on a file system that has locks", str(error)) from error
        else:
            return
        now = time.monotonic()
        holder = _holder(file)
        stands = holder is not None and _is_stopped(holder)
        if not stands:
            stands_since = now
        if now - stands_since >= wait_stopped or now - began >= wait:
            raise _taken(doing, holder, stands, now - began)
        time.sleep(_POLL_SECONDS)


def _taken(doing: str, holder: int | None, stands: bool, waited: float) -> BrokerUnavailable:
    who = "another process" if holder is None else f"process {holder}"
    what = "and was stopped" if stands else f"and has not finished in {waited:.0f} s"
    again = f"let it go on (fg, or kill -CONT {holder}) or end it" if stands else "wait for it, or end it"
    return BrokerUnavailable("cluster", f"{who} is {doing} {what}", remedy=again)


def _holder(file: int) -> int | None:
    """The process that has the lock, as it wrote; None while it has not yet."""
    with contextlib.suppress(ValueError, OSError):
        return int(os.pread(file, 20, 0)) or None
    return None


def _is_stopped(process: int) -> bool:
    try:
        return bool(psutil.Process(process).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP))
    except (psutil.Error, ValueError, OverflowError):
        return False
