"""Limit the appends in progress, and refuse appends when the event loop is late.

A refused append gets the response SYSTEM_BUSY at once, before anything is read or stored. So the producer waits or
chooses another broker instead of reaching its time-out. A full disk is reported by the store itself
(SERVICE_NOT_AVAILABLE). No I/O, injected clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from raymq.actors.errors import RayMQError, ServerBusy
from raymq.actors.protocol import APPEND_WAIT_MS
from raymq.storage.errors import StoreBusy, StoreFailed, StoreFull

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
        self._last_append_seconds = self._clock() - began

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
