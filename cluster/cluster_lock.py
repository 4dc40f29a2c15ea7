"""Serialize the starts of a cluster with a lock file for each user and namespace.

The file contains the process id of the holder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

import psutil

from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.cluster import cluster_file

#: The seconds to wait for a start in progress, whose actors may have stores to recover.
WAIT_SECONDS = 120.0
#: The seconds to wait if the holder's process is suspended (Ctrl-Z, a debugger), because it may be resumed.
STOPPED_SECONDS = 5.0
_POLL_SECONDS = 0.05


@contextlib.contextmanager
def cluster_lock(
    namespace: str,
    wait: float = WAIT_SECONDS,
    wait_stopped: float = STOPPED_SECONDS,
    doing: str = "starting the cluster",
) -> Iterator[None]:
    """Hold the lock of this user's starts in this namespace during the block.

    Other starts wait, and then find a complete cluster.

    Args:
        namespace: the cluster's.
        wait: the most seconds to wait for another start.
        wait_stopped: the most seconds to wait while its process is suspended.
        doing: the description of the other start for the error message.

    Raises:
        BrokerUnavailable: another start has not ended in time; the message names its process.
        InvalidInput: there is no folder for the lock, or its file system does not support locks.
    """
    try:
        file = os.open(cluster_file.lock_file(namespace), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidInput(
            cluster_file.HOME_VARIABLE, "a writable folder that belongs to this user", str(error)
        ) from error
    try:
        _take(file, f"{doing} in namespace {namespace}", wait, wait_stopped)
        with contextlib.suppress(OSError):  # On a full disk other starts cannot name this process, but the lock works.
            os.ftruncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)
        yield
    finally:
        # Closing alone would not release the lock if a process was forked meanwhile, because the child holds it too.
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
            raise InvalidInput(
                cluster_file.HOME_VARIABLE, "a folder on a file system that supports locks", str(error)
            ) from error
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
    owner = "another process" if holder is None else f"process {holder}"
    what = "and was stopped" if stands else f"and has not finished in {waited:.0f} s"
    again = f"let it go on (fg, or kill -CONT {holder}) or end it" if stands else "wait for it, or end it"
    return BrokerUnavailable("cluster", f"{owner} is {doing} {what}", remedy=again)


def _holder(file: int) -> int | None:
    """Return the process id of the lock's holder, None if not yet written."""
    with contextlib.suppress(ValueError, OSError):
        return int(os.pread(file, 20, 0)) or None
    return None


def _is_stopped(process: int) -> bool:
    try:
        return bool(psutil.Process(process).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP))
    except (psutil.Error, ValueError, OverflowError):
        return False
