"""Which appends a broker takes on: bounds on what is under way, and honesty about being late. No I/O, injected clock.

What is refused is answered with SYSTEM_BUSY, at once and before anything is read or stored, so that the producer waits
or goes elsewhere instead of running into its time-out. A full disk is the store's own answer (SERVICE_NOT_AVAILABLE).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from raymq.actors.errors import RayMQError, ServerBusy
from raymq.actors.protocol import APPEND_WAIT_MS
from raymq.storage.errors import StoreBusy, StoreFailed, StoreFull

#: How often the event loop says that it is alive.
BEAT_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """The bounds. Source of the last three: RocketMQ's sendThreadPoolQueueCapacity, waitTimeMillsInSendQueue and
    osPageCacheBusyTimeOutMills.

    Attributes:
        bytes_under_way: of appends that are not answered yet.
        appends_under_way: how many of them.
        age_seconds: an append that may have waited longer than this before it was looked at is refused.
        stall_seconds: an append that takes longer than this is blamed on the page cache.
    """

    bytes_under_way: int = 256 << 20
    appends_under_way: int = 10_000
    age_seconds: float = APPEND_WAIT_MS / 1000
    stall_seconds: float = 1.0


class Admission:
    """One broker's, used from its event loop. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float], limits: AdmissionLimits | None = None) -> None:
        self._clock = clock
        self.limits = limits or AdmissionLimits()
        self.bytes_under_way = 0
        self.appends_under_way = 0
        #: How many appends were let in so far.
        self.entered = 0
        #: When the next beat should come.
        self._due = math.inf
        self._was_late = 0.0
        self._last_append_seconds = 0.0

    def beat(self) -> None:
        """The event loop came round; due every `BEAT_SECONDS`. Without a first beat nothing counts as late.

        After a late one what is looked at until the next may have waited just as long.
        """
        now = self._clock()
        self._was_late = max(0.0, now - self._due)
        self._due = now + BEAT_SECONDS

    def enter(self, size: int) -> None:
        """Let an append of so many bytes in; `leave` must follow once it is answered.

        Raises:
            ServerBusy: a bound is reached, or the loop is so late that the request may have waited for too long.
        """
        limits = self.limits
        if self.appends_under_way >= limits.appends_under_way:
            raise ServerBusy(
                f"{self.appends_under_way} appends wait for the disk, at most that many may", bound="appends_under_way"
            )
        if self.bytes_under_way + size > limits.bytes_under_way and self.appends_under_way:
            raise ServerBusy(
                f"{self.bytes_under_way} bytes wait for the disk, {limits.bytes_under_way} may", bound="bytes_under_way"
            )
        late = self._clock() - self._due
        if late > limits.age_seconds or self._was_late > limits.age_seconds:
            late = max(late, self._was_late)
            if self._last_append_seconds > limits.stall_seconds:
                raise ServerBusy(
                    f"page cache busy: an append took {self._last_append_seconds:.1f} s", bound="page_cache"
                )
            raise ServerBusy(f"requests wait for {late:.1f} s, at most {limits.age_seconds} s they may", bound="age")
        self.bytes_under_way += size
        self.appends_under_way += 1
        self.entered += 1

    def stay(self, size: int) -> None:
        """Count an append that was let in once more: it leaves twice."""
        self.bytes_under_way += size
        self.appends_under_way += 1

    def appended(self, began: float) -> None:
        """The store has taken an append that began then."""
        self._last_append_seconds = self._clock() - began

    def leave(self, size: int) -> None:
        """An append that was let in is answered, well or not."""
        self.bytes_under_way -= size
        self.appends_under_way -= 1

    def validate(self) -> None:
        """Nothing leaves that did not enter."""
        assert self.appends_under_way >= 0
        assert self.bytes_under_way >= 0
        assert self.appends_under_way or not self.bytes_under_way


def cause_of(refusal: RayMQError) -> str:
    """What a refused append is counted under: the bound that it met, else the name of its response code."""
    if isinstance(refusal, StoreBusy):
        return "no_descriptors"
    if isinstance(refusal, StoreFull):
        return "disk_full"
    if isinstance(refusal, StoreFailed):
        return "disk_failed"
    if isinstance(refusal, ServerBusy):
        return refusal.bound or refusal.wire_code
    return refusal.wire_code
