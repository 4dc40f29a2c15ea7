"""How much goes through a broker: messages and bytes per topic, per topic and group, in all. No I/O, injected clock.

Kept as sums over a minute, an hour and a day in buckets of 5 seconds, 5 minutes and an hour, so that one call per
batch costs a few additions and an idle topic nothing. Nothing is stored: a restart begins at zero, as in RocketMQ.
Used on the broker's event loop only.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from raymq.actors.core.loop_stops import LoopStops

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0

_Key = TypeVar("_Key")

#: Bucket width and reach in seconds.
_WINDOWS = ((5.0, MINUTE), (300.0, HOUR), (3600.0, DAY))


@dataclass(frozen=True, slots=True)
class Sums:
    """What a counter saw within some seconds."""

    seconds: float
    calls: int
    messages: int
    bytes: int

    @property
    def messages_per_second(self) -> float:
        """The mean rate."""
        return self.messages / self.seconds


@dataclass(slots=True)
class _Bucket:
    slot: int
    calls: int = 0
    messages: int = 0
    bytes: int = 0


class _Window:
    """The buckets of the last `reach` seconds that saw anything, oldest first."""

    __slots__ = ("_buckets", "_slots", "_width")

    def __init__(self, width: float, reach: float) -> None:
        self._width = width
        self._slots = round(reach / width)
        self._buckets: deque[_Bucket] = deque()

    def add(self, now: float, calls: int, messages: int, size: int) -> None:
        slot = int(now // self._width)
        buckets = self._buckets
        if not buckets or buckets[-1].slot < slot:
            buckets.append(_Bucket(slot))
            while buckets[0].slot <= slot - self._slots:
                buckets.popleft()
        newest = buckets[-1]  # a clock that was set back counts into the newest one
        newest.calls += calls
        newest.messages += messages
        newest.bytes += size

    def sums(self, now: float, seconds: float) -> Sums:
        after = int(now // self._width) - round(seconds / self._width)
        counted = [bucket for bucket in self._buckets if bucket.slot > after]
        return Sums(
            seconds,
            sum(bucket.calls for bucket in counted),
            sum(bucket.messages for bucket in counted),
            sum(bucket.bytes for bucket in counted),
        )


class Counter:
    """Totals since the start, and sums of the last minute, hour and day.

    What is counted within one of the narrowest buckets goes into the windows together, when somebody asks or the next
    one begins.
    """

    __slots__ = ("_counted", "_from", "_to", "_windows", "bytes", "calls", "messages")

    def __init__(self) -> None:
        self.calls = 0
        self.messages = 0
        self.bytes = 0
        self._windows = tuple(_Window(width, reach) for width, reach in _WINDOWS)
        #: The totals that the windows know; and the time of the bucket that what came since belongs to.
        self._counted = (0, 0, 0)
        self._from = self._to = 0.0

    def add(self, now: float, messages: int, size: int) -> None:
        """Count one call."""
        if not self._from <= now < self._to:
            self._pass_on()
            width = _WINDOWS[0][0]
            self._from = now // width * width
            self._to = self._from + width
        self.calls += 1
        self.messages += messages
        self.bytes += size

    def sums(self, now: float, seconds: float) -> Sums:
        """The last `seconds` (at most a day), to the width of the buckets that reach so far."""
        self._pass_on()
        for window, (_, reach) in zip(self._windows, _WINDOWS, strict=True):
            if seconds <= reach:
                return window.sums(now, seconds)
        raise ValueError(f"a counter remembers {DAY:.0f} s, not {seconds}")

    def _pass_on(self) -> None:
        """Tell the windows what they do not know yet."""
        calls, messages, octets = self._counted
        if self.calls > calls:
            for window in self._windows:
                window.add(self._from, self.calls - calls, self.messages - messages, self.bytes - octets)
            self._counted = (self.calls, self.messages, self.bytes)


class Statistics:
    """A broker's counters. `clock` is wall time in seconds: totals are also told as of the last two midnights."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.loop_stops = LoopStops(time.monotonic)
        self.started = clock()
        self.total_put = Counter()
        self.total_get = Counter()
        #: Appends that were refused, by cause: see `admission.cause_of`.
        self.refusals: dict[str, int] = {}
        self._put: dict[str, Counter] = {}
        self._get: dict[tuple[str, str], Counter] = {}
        self._sent_back: dict[tuple[str, str], Counter] = {}
        self._midnight = _next_midnight(self.started)
        #: (messages put, messages got) as of this morning's and yesterday morning's midnight.
        self._this_morning = (0, 0)
        self._yesterday_morning = (0, 0)

    def put(self, topic: str, messages: int, size: int) -> None:
        """`messages` of together `size` bytes were appended for `topic`; one call per batch."""
        now = self._now()
        self.total_put.add(now, messages, size)
        _counter(self._put, topic).add(now, messages, size)

    def get(self, group: str, topic: str, messages: int, size: int) -> None:
        """`messages` of together `size` bytes were given to `group`; one call per pull."""
        now = self._now()
        self.total_get.add(now, messages, size)
        _counter(self._get, (topic, group)).add(now, messages, size)

    def sent_back(self, group: str, topic: str) -> None:
        """`group` failed to consume a message of `topic`."""
        _counter(self._sent_back, (topic, group)).add(self._now(), 1, 0)

    def refused(self, cause: str) -> None:
        """An append was refused for that; nothing was stored."""
        self.refusals[cause] = self.refusals.get(cause, 0) + 1

    def put_of(self, topic: str) -> Counter | None:
        """What was appended for a topic, or None if nothing was."""
        return self._put.get(topic)

    def get_of(self, group: str, topic: str) -> Counter | None:
        """What a group was given of a topic, or None if nothing was."""
        return self._get.get((topic, group))

    def sent_back_of(self, group: str, topic: str) -> Counter | None:
        """What a group sent back of a topic, or None if nothing was."""
        return self._sent_back.get((topic, group))

    def mornings(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(messages put, messages got) since the start as of the last midnight, and as of the one before."""
        self._now()
        return self._this_morning, self._yesterday_morning

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted."""
        self._put.pop(topic, None)
        for table in (self._get, self._sent_back):
            for key in [key for key in table if key[0] == topic]:
                del table[key]

    def forget_group(self, group: str) -> None:
        """A group was deleted."""
        for table in (self._get, self._sent_back):
            for key in [key for key in table if key[1] == group]:
                del table[key]

    def _now(self) -> float:
        now = self.clock()
        while now >= self._midnight:
            self._yesterday_morning = self._this_morning
            self._this_morning = (self.total_put.messages, self.total_get.messages)
            self._midnight = _next_midnight(self._midnight)
        return now


def _counter(table: dict[_Key, Counter], key: _Key) -> Counter:
    counter = table.get(key)
    if counter is None:
        counter = table[key] = Counter()
    return counter


def _next_midnight(now: float) -> float:
    """The first local midnight after `now`."""
    day = time.localtime(now)
    return time.mktime((day.tm_year, day.tm_mon, day.tm_mday + 1, 0, 0, 0, 0, 0, -1))
