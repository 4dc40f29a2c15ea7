"""One thread that makes a keeper's decisions in the order in which they were asked for.

A decision is saved, and fsynced, before it is told; an event loop that did that would stand still for as long as the
disk takes, and a broker's with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from raymq.actors.errors import ServerBusy

#: So many questions may wait for one keeper; each takes at most some 30 KB. Masters ask twice a second and group.
MOST_WAITING: Final = 1_000
_T = TypeVar("_T")
_Work = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class DecisionThread:
    """Made and used on one event loop; `stop` ends it. A daemon: a disk that hangs holds no process up."""

    def __init__(self, name: str, most_waiting: int = MOST_WAITING) -> None:
        self._loop = asyncio.get_running_loop()
        self._most_waiting = most_waiting
        self._waiting = 0
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def decide(self, decide: Callable[[], _T]) -> asyncio.Future[_T]:
        """What `decide()` returns or raises on the thread, after all that was asked before.

        Raises:
            ServerBusy: too many wait already.
        """
        if self._waiting >= self._most_waiting:
            raise ServerBusy(f"{self._waiting} questions wait for this keeper's disk")
        future: asyncio.Future[_T] = self._loop.create_future()
        self._waiting += 1
        self._queue.put((decide, future))
        return future

    async def stop(self, seconds: float) -> None:
        """End it after what waits; at most so many seconds are waited for that."""
        self._queue.put(None)
        deadline = self._loop.time() + seconds
        await asyncio.to_thread(self._thread.join, max(0.0, deadline - self._loop.time()))

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            decide, future = work
            result: Any = None
            error: BaseException | None = None
            try:
                result = decide()
            except BaseException as raised:  # noqa: BLE001 - whatever it is, it is told to who asked
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it who asked
                self._loop.call_soon_threadsafe(self._decided, future, result, error)

    def _decided(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._waiting -= 1
        if future.done():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            future.set_exception(error)
        else:
            future.set_exception(RuntimeError(f"a decision ended with {error!r}"))
