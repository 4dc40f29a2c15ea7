"""One append from its admission to its answer: the rule of all ways in, for whatever refuses it and whatever fails."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

from raymq.actors.broker.core.appending.admission import Admission, cause_of
from raymq.actors.broker.core.statistics import Statistics
from raymq.actors.errors import RayMQError, WriteUnknown
from raymq.storage.store import Store


class AppendUnderWay:
    """A context manager around what stores one append of `size` bytes. Used on the broker's event loop.

    It is let in at the beginning and let out at the end, unless it has to `stay` until it is answered. What refuses it
    is counted by its cause.

    Raises:
        ServerBusy: the broker has more to do than it may have; nothing was stored.
        WriteUnknown: it failed, and the log has grown: nobody may say that it is not stored.
    """

    __slots__ = ("_admission", "_log_end", "_size", "_statistics", "_store")

    def __init__(self, store: Store, admission: Admission, statistics: Statistics, size: int) -> None:
        self._store = store
        self._admission = admission
        self._statistics = statistics
        self._size = size

    def __enter__(self) -> Self:
        try:
            self._admission.enter(self._size)
        except RayMQError as error:
            self._statistics.refused(cause_of(error))
            raise
        self._log_end = self._store.max_physical_offset
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._admission.leave(self._size)
        if error is None:
            return
        if isinstance(error, Exception) and self._store.max_physical_offset != self._log_end:
            unknown = WriteUnknown(f"half done: {type(error).__name__}: {error}")
            self._statistics.refused(cause_of(unknown))
            raise unknown from error
        if isinstance(error, RayMQError):
            self._statistics.refused(cause_of(error))

    def stay(self) -> Callable[[], None]:
        """Let it stay under way behind the block; returns what lets it out, once it is answered."""
        self._admission.stay(self._size)
        return partial(self._admission.leave, self._size)
