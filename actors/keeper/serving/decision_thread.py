"""One thread that makes a keeper's decisions in the order of the requests.

A decision is saved and fsynced before it is sent. On an event loop that would block the loop for as long as the disk
takes, and in a broker's process the broker's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from raymq.actors.errors import ServerBusy

#: The most requests that may wait for one keeper, each of at most some 30 KB. A master sends two a second per group.
MAX_WAITING: Final = 1_000
_T = TypeVar("_T")
_Work = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class DecisionThread:
    """A daemon thread, made and used on one event loop and ended by `stop`.

    As a daemon it does not keep the process running when the disk hangs.
    """

    def __init__(self, name: str, most_waiting: int = MAX_WAITING) -> None:
        self._loop = asyncio.get_running_loop()
        self._most_waiting = most_waiting
        self._waiting = 0
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def decide(self, decide: Callable[[], _T]) -> asyncio.Future[_T]:
        """Run `decide()` on the thread after all earlier calls, and return its future result.

        The future also carries the exception that `decide()` raises.

        Raises:
            ServerBusy: too many calls wait already.
        """
        if self._waiting >= self._most_waiting:
            raise ServerBusy(f"{self._waiting} calls wait for this keeper's disk")
        future: asyncio.Future[_T] = self._loop.create_future()
        self._waiting += 1
        self._queue.put((decide, future))
        return future

    async def stop(self, seconds: float) -> None:
        """End the thread after the calls that wait.

        Wait at most so many seconds for that.
        """
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
            except BaseException as raised:  # noqa: BLE001 - the caller receives any error
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop has closed, and with it the caller
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
            future.set_exception(RuntimeError(f"the call ended with {error!r}"))
