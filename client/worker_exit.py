"""Run functions at the end of a worker process of `multiprocessing`.

Such a process skips `atexit` functions. It runs multiprocessing's own finalizers instead, waits for its threads, and
exits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from multiprocessing import util
from multiprocessing.process import parent_process
from typing import Final

#: After the queues and pools of multiprocessing (priority 0 and above), before temporary directories are removed.
_PRIORITY: Final = -10

_calls: list[Callable[[], None]] = []
_log = logging.getLogger(__name__)


def call_at_worker_exit(call: Callable[[], None]) -> None:
    """Call a function at the end of every worker process of multiprocessing.

    It is called in each such process that imports this module or is forked from a process with it, after all other
    non-daemon threads have ended.
    """
    _calls.append(call)


def _begin() -> None:
    util.Finalize(None, _wait_for_threads_aside, exitpriority=_PRIORITY)


def _wait_for_threads_aside() -> None:
    """Start a non-daemon thread that waits for the other threads and makes the calls.

    Threads may send after the finalizers have run, and the process waits for its non-daemon threads.
    """
    if not threading.main_thread().is_alive():
        # Since Python 3.13 (gh-83856) finalizers run after the threads have ended, and a new thread would not be waited
        # for.
        _call_behind_threads()
        return
    threading.Thread(target=_call_behind_threads, name="raymq-worker-end", daemon=False).start()


def _call_behind_threads() -> None:
    known = {threading.current_thread(), threading.main_thread()}
    while others := [thread for thread in threading.enumerate() if not thread.daemon and thread not in known]:
        for thread in others:
            thread.join()
    for call in _calls:
        try:
            call()
        except Exception:  # noqa: BLE001 - an error of one call must not stop the others
            _log.exception("a call at the end of a worker process failed")


def _after_fork(_: object) -> None:
    _begin()


# multiprocessing forgets its finalizers in a child that it forks, and calls this afterwards.
util.register_after_fork(_begin, _after_fork)
if parent_process() is not None:  # a spawned child imports this module itself
    _begin()
