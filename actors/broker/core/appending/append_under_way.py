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


class AppendDoor:
    """Lets appends in, tells what their failures mean, and lets them out. One per broker, on its event loop."""

    def __init__(self, store: Store, admission: Admission, statistics: Statistics) -> None:
        self._store = store
        self._admission = admission
        self._statistics = statistics
        #: Lets one of so many bytes out: it is answered, well or not.
        self.leave = admission.leave

    def enter(self, size: int) -> int:
        """Let one of `size` bytes in; returns where the log ends. `failed` must follow if it fails, and `leave`.

        Raises:
            ServerBusy: the broker has more to do than it may have; nothing was stored.
        """
        try:
            self._admission.enter(size)
        except RayMQError as error:
            self._statistics.refused(cause_of(error))
            raise
        return self._store.max_physical_offset

    def failed(self, error: BaseException, log_end: int) -> None:
        """Count what refused one that was let in when the log ended there; the caller raises `error` on.

        Raises:
            WriteUnknown: the log has grown: nobody may say that it is not stored.
        """
        if isinstance(error, Exception) and self._store.max_physical_offset != log_end:
            unknown = WriteUnknown(f"half done: {type(error).__name__}: {error}")
            self._statistics.refused(cause_of(unknown))
            raise unknown from error
        if isinstance(error, RayMQError):
            self._statistics.refused(cause_of(error))

    def stay(self, size: int) -> Callable[[], None]:
        """Let one that is in stay behind its `leave`; returns what lets it out, once it is answered."""
        self._admission.stay(size)
        return partial(self.leave, size)


class AppendUnderWay:
    """A context manager around what stores one append of `size` bytes. Used on the broker's event loop.

    It is let in at the beginning and let out at the end, unless it has to `stay` until it is answered. What refuses it
    is counted by its cause.

    Raises:
        ServerBusy, WriteUnknown: as `AppendDoor`.
    """

    __slots__ = ("_door", "_log_end", "_size")

    def __init__(self, door: AppendDoor, size: int) -> None:
        self._door = door
        self._size = size

    def __enter__(self) -> Self:
        self._log_end = self._door.enter(self._size)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._door.leave(self._size)
        if error is not None:
            self._door.failed(error, self._log_end)

    def stay(self) -> Callable[[], None]:
        """Let it stay under way behind the block; returns what lets it out, once it is answered."""
        return self._door.stay(self._size)
