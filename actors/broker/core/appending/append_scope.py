"""Track one append from its admission to its response.

All paths by which appends reach the broker follow these rules, whatever refuses the append and whatever fails.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

from raymq.actors.broker.core.appending.admission import Admission, refusal_cause
from raymq.actors.broker.core.statistics import Statistics
from raymq.actors.errors import RayMQError, WriteUnknown
from raymq.storage.store import Store


class AppendAdmission:
    """Admits appends, classifies their failures, and ends them.

    One object per broker, used on its event loop.
    """

    def __init__(self, store: Store, admission: Admission, statistics: Statistics) -> None:
        self._store = store
        self._admission = admission
        self._statistics = statistics
        #: Ends an append of that many bytes, once it is answered with success or not.
        self.leave = admission.leave

    def enter(self, size: int) -> int:
        """Admit an append of `size` bytes, and return where the log ends.

        `failed` must follow if the append fails, and `leave` in any case.

        Raises:
            ServerBusy: a limit of the broker is reached; nothing was stored.
        """
        try:
            self._admission.enter(size)
        except RayMQError as error:
            self._statistics.refused(refusal_cause(error))
            raise
        return self._store.max_physical_offset

    def failed(self, error: BaseException, log_end: int) -> None:
        """Count a failure of an append that was admitted when the log ended at `log_end`.

        The caller reraises `error`.

        Raises:
            WriteUnknown: the log has grown, so it is unknown whether the append is stored.
        """
        if isinstance(error, Exception) and self._store.max_physical_offset != log_end:
            unknown = WriteUnknown(f"the append failed half-way: {type(error).__name__}: {error}")
            self._statistics.refused(refusal_cause(unknown))
            raise unknown from error
        if isinstance(error, RayMQError):
            self._statistics.refused(refusal_cause(error))

    def extend(self, size: int) -> Callable[[], None]:
        """Keep an admitted append in progress after its `leave`.

        Return the function to call once the append is answered.
        """
        self._admission.extend(size)
        return partial(self.leave, size)


class AppendScope:
    """A context manager around the code that stores one append of `size` bytes.

    Used on the broker's event loop. The append is admitted on entry and ends on exit, unless `extend` keeps it in
    progress until its response. An error that refuses it is counted by its cause.

    Raises:
        ServerBusy, WriteUnknown: as `AppendAdmission`.
    """

    __slots__ = ("_door", "_log_end", "_size")

    def __init__(self, door: AppendAdmission, size: int) -> None:
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

    def extend(self) -> Callable[[], None]:
        """Keep the append in progress after the block.

        Return the function to call once the append is answered.
        """
        return self._door.extend(self._size)
