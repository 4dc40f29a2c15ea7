"""A future of which whoever writes the answer is told in the turn of the loop in which it is made.

What waits for an ordinary future has its turn behind all else that the loop has to do then: three turns and a task for
an answer that could have been written at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


class PromptFuture(asyncio.Future[_T]):
    """Used on its loop. It may be awaited as any other, and `when_done` comes before those who do."""

    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._told: list[Callable[[PromptFuture[_T]], None]] = []

    def when_done(self, call: Callable[[PromptFuture[_T]], None]) -> None:
        """Call it as soon as there is an outcome, in the order in which they asked; now, if there is one.

        It must raise nothing, and may be called in the middle of what somebody else does: it makes no outcome of
        another future.
        """
        if self.done():
            call(self)
        else:
            self._told.append(call)

    def set_result(self, result: _T) -> None:
        super().set_result(result)
        self._tell()

    def set_exception(self, exception: type | BaseException) -> None:
        super().set_exception(exception)
        self._tell()

    def cancel(self, msg: Any | None = None) -> bool:
        is_cancelled = super().cancel(msg)
        if is_cancelled:
            self._tell()
        return is_cancelled

    def _tell(self) -> None:
        told, self._told = self._told, []
        for call in told:
            call(self)
