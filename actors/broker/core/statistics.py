"""Count the messages and bytes through a broker, by topic, by group and in total.

The counts are sums over a minute, an hour and a day in buckets of 5 seconds, 5 minutes and an hour. So one call per
batch costs a few additions, and an idle topic costs nothing. Nothing is stored: after a restart all counts are zero, as
in RocketMQ. Counters that were not used for a day are dropped. Clients may invent group names, so at most `MAX_PAIRS`
pairs of topic and group are counted. No I/O, injected clock. Used on the broker's event loop only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from raymq.actors.broker.core.event_loop_lag import EventLoopLag
from raymq.storage.histogram import Histogram
from raymq.storage.records.record import Buffer, store_timestamp_ms

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0

_Key = TypeVar("_Key")
_Counter = TypeVar("_Counter", bound="Counter")

#: RocketMQ's buckets of `rocketmq_message_size`, in bytes.
MESSAGE_SIZE_BOUNDS: Final = (1024, 4 * 1024, 512 * 1024, 1024 * 1024, 2 * 1024 * 1024, 4 * 1024 * 1024)

#: At most this many pairs of topic and group are counted.
MAX_PAIRS: Final = 10_000
#: A table with fewer counters is not scanned for unused ones.
_FEW: Final = 64

#: Bucket width and reach in seconds.
_WINDOWS = ((5.0, MINUTE), (300.0, HOUR), (3600.0, DAY))


@dataclass(frozen=True, slots=True)
class WindowTotals:
    """What a counter counted within some seconds."""

    seconds: float
    calls: int
    messages: int
    bytes: int

    @property
    def messages_per_second(self) -> float:
        """Return the mean rate."""
        return self.messages / self.seconds


@dataclass(slots=True)
class _Bucket:
    slot: int
    calls: int = 0
    messages: int = 0
    bytes: int = 0


class _Window:
    """The non-empty buckets of the last `reach` seconds, oldest first."""

    __slots__ = ("_buckets", "_slots", "_width")

    def __init__(self, width: float, reach: float) -> None:
        self._width = width
        self._slots = round(reach / width)
        self._buckets: list[_Bucket] = []  # at most 24, for which a list needs less memory than a deque

    def add(self, now: float, calls: int, messages: int, size: int) -> None:
        slot = int(now // self._width)
        buckets = self._buckets
        if not buckets or buckets[-1].slot < slot:
            buckets.append(_Bucket(slot))
            while buckets[0].slot <= slot - self._slots:
                del buckets[0]
        newest = buckets[-1]  # a clock that was set back counts into the newest one
        newest.calls += calls
        newest.messages += messages
        newest.bytes += size

    def sums(self, now: float, seconds: float) -> WindowTotals:
        after = int(now // self._width) - round(seconds / self._width)
        counted = [bucket for bucket in self._buckets if bucket.slot > after]
        return WindowTotals(
            seconds,
            sum(bucket.calls for bucket in counted),
            sum(bucket.messages for bucket in counted),
            sum(bucket.bytes for bucket in counted),
        )


class Counter:
    """Totals since the start, and sums of the last minute, hour and day.

    Counts within one of the narrowest buckets are added to the windows together, when sums are read or the next bucket
    begins.
    """

    __slots__ = ("_counted", "_from", "_to", "_windows", "bytes", "calls", "messages")

    def __init__(self) -> None:
        self.calls = 0
        self.messages = 0
        self.bytes = 0
        self._windows = tuple(_Window(width, reach) for width, reach in _WINDOWS)
        #: The totals that the windows include; and the bounds of the bucket to which the later counts belong.
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

    @property
    def used_at(self) -> float:
        """Return the time of the last count, rounded down to the narrowest bucket."""
        return self._from

    def sums(self, now: float, seconds: float) -> WindowTotals:
        """Return the sums of the last `seconds`, which are at most a day.

        The result is as precise as the buckets of the first window that covers `seconds`.
        """
        self._pass_on()
        for window, (_, reach) in zip(self._windows, _WINDOWS, strict=True):
            if seconds <= reach:
                return window.sums(now, seconds)
        raise ValueError(f"a counter covers {DAY:.0f} s, not {seconds}")

    def _pass_on(self) -> None:
        """Add the counts that the windows do not include yet to the windows."""
        calls, messages, size = self._counted
        if self.calls > calls:
            for window in self._windows:
                window.add(self._from, self.calls - calls, self.messages - messages, self.bytes - size)
            self._counted = (self.calls, self.messages, self.bytes)


class TopicCounter(Counter):
    """The counts of what was stored in a topic, with the sizes of its messages.

    A batch counts with the mean size of its messages, as in RocketMQ.
    """

    __slots__ = ("sizes",)

    def __init__(self) -> None:
        super().__init__()
        self.sizes = Histogram(MESSAGE_SIZE_BOUNDS)


class _Counters(Generic[_Key, _Counter]):
    """Counters by key, at most `most` of them.

    At the limit, the least recently used half is dropped.
    """

    __slots__ = ("_create", "_most", "_table", "_tidied_at")

    def __init__(self, create: Callable[[], _Counter], most: float = float("inf")) -> None:
        self._create = create
        self._most = most
        self._table: dict[_Key, _Counter] = {}
        #: The table is scanned for unused counters when it has this many.
        self._tidied_at: float = _FEW

    def __len__(self) -> int:
        return len(self._table)

    def get(self, key: _Key) -> _Counter | None:
        return self._table.get(key)

    @property
    def table(self) -> Mapping[_Key, _Counter]:
        return self._table

    def made(self, key: _Key, now: float) -> _Counter:
        """Return the counter of `key`, created if there is none."""
        counter = self._table.get(key)
        if counter is None:
            if len(self._table) >= self._tidied_at:
                self._tidy(now)
            counter = self._table[key] = self._create()
        return counter

    def drop(self, key: _Key) -> None:
        self._table.pop(key, None)

    def forget(self, is_gone: Callable[[_Key], bool]) -> None:
        for key in [key for key in self._table if is_gone(key)]:
            del self._table[key]

    def _tidy(self, now: float) -> None:
        """Drop unused counters; the cost per counter created since the last call is small."""
        used = [(key, counter) for key, counter in self._table.items() if counter.used_at > now - DAY]
        if len(used) >= self._most:
            used.sort(key=lambda pair: pair[1].used_at)
            used = used[len(used) // 2 :]
        self._table = dict(used)
        self._tidied_at = min(self._most, max(_FEW, 2 * len(used)))


class Statistics:
    """A broker's counters.

    `clock` is wall time in seconds, because totals are also reported as of the last two midnights.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.loop_lag = EventLoopLag(time.monotonic)
        self.started = clock()
        self.total_put = Counter()
        self.total_get = Counter()
        #: Appends that were refused, by cause: see `admission.refusal_cause`.
        self.refusals: dict[str, int] = {}
        #: The time from the storing of a message to its delivery; a sample of all messages.
        self.deliver_seconds = Histogram()
        self._next_delivery_sample = 0.0
        self._put = _Counters[str, TopicCounter](TopicCounter)
        #: By topic and group, as is `_sent_back`.
        self._get = _Counters[tuple[str, str], Counter](Counter, MAX_PAIRS)
        self._sent_back = _Counters[tuple[str, str], Counter](Counter, MAX_PAIRS)
        self._midnight = _next_midnight(self.started)
        #: (messages put, messages got) as of this morning's and yesterday morning's midnight.
        self._this_morning = (0, 0)
        self._yesterday_morning = (0, 0)

    def put(self, topic: str, messages: int, size: int) -> None:
        """Count one appended batch of `topic`: `messages` with `size` bytes in total."""
        now = self._now()
        self.total_put.add(now, messages, size)
        counter = self._put.made(topic, now)
        counter.add(now, messages, size)
        if messages == 1:
            counter.sizes.observe(size)
        else:
            counter.sizes.observe_times(size / max(1, messages), messages)

    def get(self, group: str, topic: str, messages: int, size: int) -> None:
        """Count one pull by `group`: `messages` with `size` bytes in total."""
        now = self._now()
        self.total_get.add(now, messages, size)
        self._get.made((topic, group), now).add(now, messages, size)

    def sent_back(self, group: str, topic: str) -> None:
        """Count a message of `topic` that `group` failed to consume."""
        now = self._now()
        self._sent_back.made((topic, group), now).add(now, 1, 0)

    def refused(self, cause: str) -> None:
        """Count an append that was refused for `cause`; nothing was stored."""
        self.refusals[cause] = self.refusals.get(cause, 0) + 1

    def delivered(self, record: Buffer) -> None:
        """Measure a delivered record's age since it was stored, 100 times a second at most."""
        now = self.clock()
        if now >= self._next_delivery_sample:
            self._next_delivery_sample = now + 0.01
            self.deliver_seconds.observe(max(0.0, now - store_timestamp_ms(record) / 1000))

    def topics(self) -> Mapping[str, TopicCounter]:
        """Return the counters of all topics' appends; callers must not change them."""
        return self._put.table

    def consumption(self) -> Mapping[tuple[str, str], Counter]:
        """Return the counters of all reads by topic and group; callers must not change them."""
        return self._get.table

    def put_of(self, topic: str) -> Counter | None:
        """Return the counter of a topic's appends, or None if there were none."""
        return self._put.get(topic)

    def get_of(self, group: str, topic: str) -> Counter | None:
        """Return the counter of a group's reads of a topic, or None."""
        return self._get.get((topic, group))

    def sent_back_of(self, group: str, topic: str) -> Counter | None:
        """Return the counter of a topic's messages that a group sent back, or None."""
        return self._sent_back.get((topic, group))

    def midnight_totals(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return (messages put, messages got) as of the last two midnights.

        Both count from the start; the last midnight comes first.
        """
        self._now()
        return self._this_morning, self._yesterday_morning

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a deleted topic."""
        self._put.drop(topic)
        for table in (self._get, self._sent_back):
            table.forget(lambda key: key[0] == topic)

    def forget_group(self, group: str) -> None:
        """Drop the counters of a deleted group."""
        for table in (self._get, self._sent_back):
            table.forget(lambda key: key[1] == group)

    def _now(self) -> float:
        now = self.clock()
        while now >= self._midnight:
            self._yesterday_morning = self._this_morning
            self._this_morning = (self.total_put.messages, self.total_get.messages)
            self._midnight = _next_midnight(self._midnight)
        return now


def _next_midnight(now: float) -> float:
    """Return the first local midnight after `now`."""
    day = time.localtime(now)
    return time.mktime((day.tm_year, day.tm_mon, day.tm_mday + 1, 0, 0, 0, 0, 0, -1))
