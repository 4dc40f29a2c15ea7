"""The end of a worker process of `multiprocessing`: it leaves without what `atexit` was told.

Such a process runs multiprocessing's own finalizers instead, waits for its threads, and is gone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from multiprocessing import util
from multiprocessing.process import parent_process
from typing import Final

#: Behind what uses us, as the queues and pools of multiprocessing do with 0 and above; ahead of directories that go.
_PRIORITY: Final = -10

_calls: list[Callable[[], None]] = []
_log = logging.getLogger(__name__)


def call_at_worker_end(call: Callable[[], None]) -> None:
    """Call it in every process that multiprocessing starts from or with this module, behind all threads of its own."""
    _calls.append(call)


def _begin() -> None:
    util.Finalize(None, _wait_for_threads_aside, exitpriority=_PRIORITY)


def _wait_for_threads_aside() -> None:
    """Threads may send after the finalizers, and the process waits for them: so does one of ours."""
    if not threading.main_thread().is_alive():
        # Since Python 3.13 (gh-83856) finalizers are run behind the threads, and nobody waits for one that begins then.
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
        except Exception:  # noqa: BLE001 - one call's fault must not keep the others from being made
            _log.exception("what had to be done at the end of a worker process failed")


def _after_fork(_: object) -> None:
    _begin()


# multiprocessing forgets its finalizers in a child that it forks, and calls this afterwards.
util.register_after_fork(_begin, _after_fork)
if parent_process() is not None:  # the child imports us itself
    _begin()
