"""Bringing a service up inside an actor's process, where the one before it may not be gone yet."""

from __future__ import annotations

import contextlib
import errno
import resource
import sys
import time
from collections.abc import Callable, Coroutine
from importlib.abc import MetaPathFinder
from typing import Any, TypeVar

from raymq.actors.errors import StoreLocked
from raymq.actors.event_loop import EventLoopThread

_Service = TypeVar("_Service")

#: How long a restart waits for the directory's lock and the port of the process before it.
PATIENCE_SECONDS = 30.0
_PAUSE_SECONDS = 0.1


def allow_many_files() -> None:
    """Raise this process's limit of open files to the highest that it may: every connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _NoPandas(MetaPathFinder):
    """Says of pandas that it is not to be had."""

    def find_spec(self, fullname: str, *_: Any) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("left out here", name=fullname)


def leave_out_pandas() -> None:
    """Keep this process from importing pandas, as pyarrow does with the first array that it makes, where it finds it.

    A broker has no use for it, and it costs a third of a restart's time. Where it was imported before, it stays.
    """
    sys.meta_path.insert(0, _NoPandas())


def start_patiently(loop: EventLoopThread, start: Callable[[], Coroutine[Any, Any, _Service]]) -> _Service:
    """Run `start` on `loop` until it succeeds; what is still in the way after `PATIENCE_SECONDS` is raised."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return loop.run(start())
        except (StoreLocked, OSError) as error:
            taken = isinstance(error, StoreLocked) or error.errno == errno.EADDRINUSE
            if not taken or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)
