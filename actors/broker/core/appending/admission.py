"""Limit the appends in progress, and refuse appends when the event loop is late.

A refused append gets the response SYSTEM_BUSY at once, before anything is read or stored. So the producer waits or
chooses another broker instead of reaching its time-out. A full disk is reported by the store itself
(SERVICE_NOT_AVAILABLE). All paths by which appends reach the broker pass an `AppendScope`, or do what it does. No I/O,
injected clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Self

from raymq.actors.broker.core.statistics import Statistics
from raymq.actors.errors import RayMQError, ServerBusy, WriteUnknown
from raymq.actors.protocol import APPEND_WAIT_MS
from raymq.storage.errors import StoreBusy, StoreFailed, StoreFull
from raymq.storage.histogram import Histogram
from raymq.storage.store import Store

#: The interval between two beats of the event loop.
BEAT_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """The limits of `Admission`.

    Source of the last three: RocketMQ's sendThreadPoolQueueCapacity, waitTimeMillsInSendQueue and
    osPageCacheBusyTimeOutMills.

    Attributes:
        bytes_under_way: of the appends that are not answered yet.
        appends_under_way: the number of these appends.
        age_seconds: an append that may have waited longer than this before it was processed is refused.
        stall_seconds: an append that takes longer than this is attributed to a busy page cache.
    """

    bytes_under_way: int = 256 << 20
    appends_under_way: int = 10_000
    age_seconds: float = APPEND_WAIT_MS / 1000
    stall_seconds: float = 1.0


class Admission:
    """The appends in progress on one broker; used from its event loop.

    `clock` is monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float], limits: AdmissionLimits | None = None) -> None:
        self._clock = clock
        self.limits = limits or AdmissionLimits()
        self.bytes_under_way = 0
        self.appends_under_way = 0
        #: How many appends were admitted so far.
        self.entered = 0
        #: When the next beat is due.
        self._due = math.inf
        self._was_late = 0.0
        self._last_append_seconds = 0.0
        #: How long appends took in the store.
        self.append_seconds = Histogram()

    def beat(self) -> None:
        """Record one beat of the event loop, which is due every `BEAT_SECONDS`.

        Without a first beat no append counts as late. After a late beat, each request until the next beat may have
        waited just as long.
        """
        now = self._clock()
        self._was_late = max(0.0, now - self._due)
        self._due = now + BEAT_SECONDS

    def enter(self, size: int) -> None:
        """Admit an append of `size` bytes; `leave` must follow once it is answered.

        Raises:
            ServerBusy: a limit is reached, or the event loop is so late that the request may have waited too long.
        """
        limits = self.limits
        if self.appends_under_way >= limits.appends_under_way:
            raise ServerBusy(
                f"{self.appends_under_way} appends wait for the disk, which is the limit", bound="appends_under_way"
            )
        if self.bytes_under_way + size > limits.bytes_under_way and self.appends_under_way:
            raise ServerBusy(
                f"{self.bytes_under_way} bytes wait for the disk, the limit is {limits.bytes_under_way}",
                bound="bytes_under_way",
            )
        late = self._clock() - self._due
        if late > limits.age_seconds or self._was_late > limits.age_seconds:
            late = max(late, self._was_late)
            if self._last_append_seconds > limits.stall_seconds:
                raise ServerBusy(
                    f"page cache busy: an append took {self._last_append_seconds:.1f} s", bound="page_cache"
                )
            raise ServerBusy(f"requests wait {late:.1f} s, the limit is {limits.age_seconds} s", bound="age")
        self.bytes_under_way += size
        self.appends_under_way += 1
        self.entered += 1

    def extend(self, size: int) -> None:
        """Count an admitted append once more; `leave` must then be called twice."""
        self.bytes_under_way += size
        self.appends_under_way += 1

    def appended(self, began: float) -> None:
        """Record that the store has finished an append that started at `began`."""
        self._last_append_seconds = seconds = self._clock() - began
        self.append_seconds.observe(seconds)

    def leave(self, size: int) -> None:
        """Record that an admitted append is answered, with success or not."""
        self.bytes_under_way -= size
        self.appends_under_way -= 1


def refusal_cause(refusal: RayMQError) -> str:
    """Return the cause under which a refused append is counted.

    It is the limit that was reached, else the name of the response code.
    """
    if isinstance(refusal, StoreBusy):
        return "no_descriptors"
    if isinstance(refusal, StoreFull):
        return "disk_full"
    if isinstance(refusal, StoreFailed):
        return "disk_failed"
    if isinstance(refusal, ServerBusy):
        return refusal.bound or refusal.wire_code
    return refusal.wire_code


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
