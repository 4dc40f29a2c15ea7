"""List the messages that wait on this broker for their time, in pages.

It changes nothing.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Final

from raymq.actors.broker.core.delay.schedule_message_service import ScheduleMessageService
from raymq.actors.broker.core.delay.timer_message_store import TimerMessageStore
from raymq.storage.cooperative_steps import Steps
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.errors import InvalidInput, OffsetOutOfRange, QueueNotFound, RayMQError
from raymq.storage.records import property_names as names
from raymq.storage.store import Store
from raymq.storage.timers.timer_entry import MIN_KEY, SortKey, sort_entries

#: How many waiting messages one step reads, and after how many of their bytes it ends.
_AT_ONCE: Final = 64
_BYTES_AT_ONCE: Final = 1 << 20
#: How many messages one page examines at most, and the bytes of a page.
_MAX_EXAMINED: Final = 10_000
_MAX_BYTES: Final = 8 << 20
_NEVER_MS: Final = 1 << 62

#: The stages of a position: delay levels come first, then timers.
_LEVELS, _TIMERS = 0, 1
#: Where a page begins: (0, level, offset in its queue) or (1, due time in ms, key).
Position = tuple[int, int, int]
BEGIN: Final[Position] = (_LEVELS, 1, 0)


@dataclass(slots=True)
class DelayedPage:
    """Some waiting messages: their records in the waiting topics, with the due times in ms.

    `following` is where the next page begins; None: there are no more.
    """

    due_ms: list[int] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    following: Position | None = BEGIN
    examined: int = 0
    bytes: int = 0


class DelayedMessages:
    """The waiting messages of one broker, of delay levels and of timers."""

    def __init__(self, store: Store, schedule: ScheduleMessageService, timers: TimerMessageStore) -> None:
        self._store = store
        self._schedule = schedule
        self._timers = timers

    def page_steps(self, begin: Position, topic: str | None, most: int) -> Steps[DelayedPage]:
        """Return waiting messages from a position on, in steps.

        The page has about `most` messages. It may have none although there are more, if many of other topics had to be
        examined.

        Args:
            topic: only the messages that will be delivered to this topic.

        Raises:
            InvalidInput: the position is none.
        """
        page = DelayedPage(following=begin)
        while page.following is not None and len(page.records) < most:
            if page.examined >= _MAX_EXAMINED or page.bytes >= _MAX_BYTES:
                break
            stage, first, second = page.following
            if stage == _LEVELS:
                self._add_level(page, topic, first, second)
            elif stage == _TIMERS:
                while not self._timers.index_new_records():
                    yield None
                yield from self._add_timers(page, topic, (first, second))
            else:
                raise InvalidInput("begin", "a position that an answer has named", begin)
            yield None
        return page

    def _add_level(self, page: DelayedPage, topic: str | None, level: int, offset: int) -> None:
        if not 1 <= level <= self._schedule.levels:
            page.following = (_TIMERS, 0, MIN_KEY)
            return
        page.following = (_LEVELS, level + 1, 0)
        with contextlib.suppress(QueueNotFound, OffsetOutOfRange):
            begin, end = self._schedule.bounds(level)
            begin = max(begin, offset)
            if begin >= end:
                return
            places, sizes, due = self._store.entries(SCHEDULE_TOPIC, level - 1, begin, min(_AT_ONCE, end - begin))
            read = read_bytes = 0
            for place, size, due_ms in zip(places.tolist(), sizes.tolist(), due.tolist(), strict=True):
                self._add(page, topic, place, size, due_ms)
                read, read_bytes = read + 1, read_bytes + size
                if read_bytes >= _BYTES_AT_ONCE:
                    break
            if 0 < read < end - begin:
                page.following = (_LEVELS, level, begin + read)

    def _add_timers(self, page: DelayedPage, topic: str | None, mark: SortKey) -> Steps[None]:
        """Add the next timers.

        It takes more than one step if very many have the same sort key.
        """
        found, following = self._timers.log.waiting(mark, _NEVER_MS, _AT_ONCE)
        ordered = sort_entries(found)
        columns = (ordered[name].tolist() for name in ("due_ms", "key", "physical_offset", "size"))
        read, read_bytes, last = 0, 0, mark
        for due_ms, key, place, size in zip(*columns, strict=True):
            if read >= _AT_ONCE or read_bytes >= _BYTES_AT_ONCE:
                if (due_ms, key) != last:  # a position cannot divide timers with the same sort key
                    following = due_ms, key
                    break
                yield None
                read = read_bytes = 0
            self._add(page, topic, place, size, due_ms)
            read, read_bytes, last = read + 1, read_bytes + size, (due_ms, key)
        page.following = None if following >= (_NEVER_MS, MIN_KEY) else (_TIMERS, *following)

    def _add(self, page: DelayedPage, topic: str | None, place: int, size: int, due_ms: int) -> None:
        page.examined += 1
        with contextlib.suppress(RayMQError):  # expired or damaged: it will not be delivered
            record = self._store.read_at(place)
            if topic is None or record.properties.get(names.REAL_TOPIC) == topic:
                page.due_ms.append(due_ms)
                page.records.append(bytes(self._store.stored(place, size)))
                page.bytes += size
