"""A future whose callbacks run in the same iteration of the loop as its completion.

Callbacks of an ordinary future run after the other work of the loop: three iterations and a task for an answer that
could have been written at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


class SyncCallbackFuture(asyncio.Future[_T]):
    """A future that runs its synchronous callbacks as soon as it is done.

    It is used on its loop and may be awaited like any other future; `add_sync_callback` callbacks run before the
    awaiting tasks resume.
    """

    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._told: list[Callable[[SyncCallbackFuture[_T]], None]] = []

    def add_sync_callback(self, call: Callable[[SyncCallbackFuture[_T]], None]) -> None:
        """Call `call` as soon as the future is done, or now if it is.

        Callbacks run in the order in which they were added. A callback must not raise, and may run in the middle of
        other code: it must not complete another future.
        """
        if self.done():
            call(self)
        else:
            self._told.append(call)

    def set_result(self, result: _T) -> None:
        super().set_result(result)
        self._notify()

    def set_exception(self, exception: type | BaseException) -> None:
        super().set_exception(exception)
        self._notify()

    def cancel(self, msg: Any | None = None) -> bool:
        is_cancelled = super().cancel(msg)
        if is_cancelled:
            self._notify()
        return is_cancelled

    def _notify(self) -> None:
        callbacks, self._told = self._told, []
        for call in callbacks:
            call(self)
