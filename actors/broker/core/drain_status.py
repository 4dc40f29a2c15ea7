"""Report the data on a broker that would be lost if the broker were removed.

Every written message counts, even if consumers cannot see it yet: a message that still waits for a replica is
acknowledged to its producer a moment later.
"""

from __future__ import annotations

import contextlib
from typing import Final

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.groups.client_registry import ClientRegistry
from raymq.actors.broker.core.groups.consume_stats import ConsumeStats
from raymq.actors.errors import GroupNotFound, QueueNotFound
from raymq.actors.naming import DLQ_PREFIX, retry_topic
from raymq.storage.cooperative_steps import Steps

#: How many topics are visited per step.
_QUEUES_AT_ONCE: Final = 100
_BROADCAST: Final = "BROADCASTING"


class DrainStatus:
    """Counts of the data that remains on one broker. Used on its event loop."""

    def __init__(self, core: BrokerCore, groups: ClientRegistry, consumption: ConsumeStats) -> None:
        self._core = core
        self._groups = groups
        self._consumption = consumption

    def unconsumed(self) -> Steps[dict[tuple[str, str], int]]:
        """Count the unconsumed messages by (group, topic), in steps.

        The largest counts come first. Broadcasting groups are left out, because their members store the progress
        themselves.
        """
        found: dict[tuple[str, str], int] = {}
        for group in sorted(self._core.group_settings.all()):
            yield None
            with contextlib.suppress(GroupNotFound):  # deleted between two steps
                if self._broadcasts(group):
                    continue
                progress = yield from self._consumption.progress_steps(group)
                for queue, consumed in progress.items():
                    end = self._end(queue.topic, queue.queue_id)
                    if (behind := end - max(consumed.committed or 0, consumed.min_offset)) > 0:
                        key = group, queue.topic
                        found[key] = found.get(key, 0) + behind
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def consumed(self) -> Steps[dict[str, list[str]]]:
        """Return the topics that each group consumes here, in steps.

        A group's retry topic is left out, because each broker counts that for itself.
        """
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
        """Count the dead letters by group, in steps."""
        found: dict[str, int] = {}
        for number, (topic, config) in enumerate(self._core.topics.all().items()):
            if number % _QUEUES_AT_ONCE == 0:
                yield None
            if not topic.startswith(DLQ_PREFIX):
                continue
            count = yield from self._core.dead_letters.count_steps(topic)
            for queue_id in range(1, config.write_queues):
                with contextlib.suppress(QueueNotFound):
                    count += self._end(topic, queue_id) - self._core.store.min_offset(topic, queue_id)
            if count:
                found[topic.removeprefix(DLQ_PREFIX)] = count
        return found

    def lent(self) -> dict[str, int]:
        """Count the unacknowledged popped messages by group, the largest counts first."""
        found: dict[str, int] = {}
        for (group, _, _), each in self._core.store.in_flight.queues.items():
            found[group] = found.get(group, 0) + len(each.deliveries)
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def _end(self, topic: str, queue_id: int) -> int:
        """Return the offset after the last message that was written to a queue."""
        try:
            return self._core.store.max_offset(topic, queue_id, written=True)
        except QueueNotFound:
            return 0

    def _broadcasts(self, group: str) -> bool:
        try:
            return self._groups.consumer_group(group).latest.message_model == _BROADCAST
        except GroupNotFound:
            return False
