"""Track which calls on other threads are running.

A leadership may end before they do.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class TrackedExecutor(ThreadPoolExecutor):
    """The executor of `asyncio.to_thread`, if it is the loop's default executor."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="raymq-beside")
        self._under_way: set[Future[Any]] = set()

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        future = super().submit(fn, *args, **kwargs)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return future

    def under_way(self) -> frozenset[Future[Any]]:
        """Return the calls that have not ended, also those that no task awaits any more."""
        return frozenset(self._under_way.copy())
