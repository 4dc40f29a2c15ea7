"""What is left on a broker that is to be taken away: what nobody could get any more without it.

What is written counts, whether consumers may see it or not: what a replica holds up is acknowledged a moment later.
"""

from __future__ import annotations

import contextlib
from typing import Final

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.groups.clients import GroupTable
from raymq.actors.broker.core.groups.consumption import Consumption
from raymq.actors.errors import GroupNotFound, QueueNotFound
from raymq.actors.naming import DLQ_PREFIX, retry_topic
from raymq.storage.steps import Steps

#: So many homes are looked at in one step, on another thread.
_HOMES_AT_ONCE: Final = 500
#: So many queues are one step of work.
_QUEUES_AT_ONCE: Final = 100
_BROADCAST: Final = "BROADCASTING"


class Remaining:
    """Counts on one broker. Used on its event loop."""

    def __init__(self, core: BrokerCore, groups: GroupTable, consumption: Consumption) -> None:
        self._core = core
        self._groups = groups
        self._consumption = consumption

    def unconsumed(self) -> Steps[dict[tuple[str, str], int]]:
        """By group and topic, what the group has not consumed. Who broadcasts keeps its progress itself."""
        found: dict[tuple[str, str], int] = {}
        for group in sorted(self._core.group_settings.all()):
            yield None
            with contextlib.suppress(GroupNotFound):  # deleted between two steps
                if self._broadcasts(group):
                    continue
                progress = yield from self._consumption.reading_progress(group)
                for queue, consumed in progress.items():
                    end = self._end(queue.topic, queue.queue_id)
                    if (behind := end - max(consumed.committed or 0, consumed.min_offset)) > 0:
                        key = group, queue.topic
                        found[key] = found.get(key, 0) + behind
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def consumed(self) -> Steps[dict[str, list[str]]]:
        """By group the topics that it consumes here, but for its retries, which each broker counts for itself."""
        found: dict[str, list[str]] = {}
        for group in sorted(self._core.group_settings.all()):
            yield None
            with contextlib.suppress(GroupNotFound):  # deleted between two steps
                if self._broadcasts(group):
                    continue
                topics = [each for each in self._consumption.topics_of(group) if each != retry_topic(group)]
                if topics:
                    found[group] = topics
        return found

    def dead_letters(self) -> Steps[dict[str, int]]:
        """By group."""
        found: dict[str, int] = {}
        for number, (topic, config) in enumerate(self._core.topics.all().items()):
            if number % _QUEUES_AT_ONCE == 0:
                yield None
            if not topic.startswith(DLQ_PREFIX):
                continue
            count = yield from self._core.dead_letters.counting(topic)
            for queue_id in range(1, config.write_queues):
                with contextlib.suppress(QueueNotFound):
                    count += self._end(topic, queue_id) - self._core.store.min_offset(topic, queue_id)
            if count:
                found[topic.removeprefix(DLQ_PREFIX)] = count
        return found

    def homes(self) -> int:
        """Of how many streams and series of writes this broker is the home. For another thread: it reads files."""
        count, after = 0, ""
        while True:
            page = self._core.homes.page(after, _HOMES_AT_ONCE)
            count += sum(home == self._core.name for _, _, home in page.homes)
            if not page.last:
                return count
            after = page.last

    def lent(self) -> dict[str, int]:
        """By group that pops, how many messages are out, the most of them first."""
        found: dict[str, int] = {}
        for (group, _, _), each in self._core.store.in_flight.queues.items():
            found[group] = found.get(group, 0) + len(each.deliveries)
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def _end(self, topic: str, queue_id: int) -> int:
        """Behind the last message that was written to a queue."""
        try:
            return self._core.store.max_offset(topic, queue_id, written=True)
        except QueueNotFound:
            return 0

    def _broadcasts(self, group: str) -> bool:
        try:
            return self._groups.consumer_group(group).latest.message_model == _BROADCAST
        except GroupNotFound:
            return False
