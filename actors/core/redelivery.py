"""A failed message goes back: to the group's retry topic through the schedule topic, or to its dead-letter queue.

Source of the properties and of the rules: RocketMQ's consumerSendMsgBack and handleRetryAndDLQ.
"""

from __future__ import annotations

import random

from raymq.actors.core import retry
from raymq.actors.core.group_settings import GroupSettings
from raymq.actors.core.locks import QueueLocks
from raymq.actors.core.rewriting import Append, encode_again, join
from raymq.actors.core.schedule import DELIVERED_FROM, Schedule
from raymq.actors.errors import PermissionDenied
from raymq.actors.naming import SCHEDULE_TOPIC, dlq_topic, retry_topic
from raymq.actors.protocol import PERM_WRITE
from raymq.storage import properties
from raymq.storage.group_config import GroupConfig
from raymq.storage.record import Record
from raymq.storage.store import Store
from raymq.storage.topic_config import TopicConfig


class Redelivery:
    """Takes messages back on one broker."""

    def __init__(
        self, store: Store, groups: GroupSettings, schedule: Schedule, locks: QueueLocks, append: Append
    ) -> None:
        self._store = store
        self._groups = groups
        self._schedule = schedule
        self._locks = locks
        self._append = append

    def send_back(
        self, group: str, physical_offset: int, delay_level: int, max_reconsume_times: int | None = None
    ) -> retry.Later | retry.Dead | None:
        """Store the message at `physical_offset` anew for `group`; what was decided, None if it wants no retries.

        Args:
            delay_level: see `retry.after_failure`.
            max_reconsume_times: the consumer's own; None takes the group's.

        Raises:
            GroupNotFound, MessageNotFound, MessageExpired.
            PermissionDenied: the group's retry topic may not be written.
        """
        config = self._groups.get(group)
        if config.retry_queues <= 0:
            return None
        self._retry_topic(config)
        record = self._store.read_at(physical_offset)
        limit = config.retry_max_times if max_reconsume_times is None else max_reconsume_times
        decision = retry.after_failure(record.reconsume_times, delay_level, limit, self._schedule.levels)
        record.properties = _returned(record)
        record.reconsume_times += 1
        if isinstance(decision, retry.Later):
            queue_id = random.randrange(config.retry_queues)
            waiting = self._schedule.waiting_copy(record, retry_topic(group), queue_id, decision.level)
            self._append(*join([waiting]), (SCHEDULE_TOPIC, decision.level - 1), again=True)
            return decision
        self.bury(group, record, decision.reason)
        return decision

    def bury(self, group: str, record: Record, reason: str) -> None:
        """Put a message, its reconsume times as they are, into the group's dead-letter queue, made now if need be."""
        topic = self._dlq_topic(group)
        kept = _returned(record)
        kept[properties.DELAY] = "0"
        kept[properties.DLQ_REASON] = reason
        self._append(*join([encode_again(record, topic, 0, kept)]), (topic, 0), again=True)

    def dead_letters_of_resent(
        self, group: str, reconsume_times: int, max_reconsume_times: int | None = None
    ) -> tuple[str, str] | None:
        """Where a retry belongs that a client sent itself, as an ordinary message to the group's retry topic.

        Args:
            reconsume_times: the request's, this retry included.
            max_reconsume_times: the request's; None takes the group's.

        Returns:
            None: to the retry topic, as asked for. Otherwise the dead-letter topic, which exists now, and the reason:
            there its queue is 0 and its delay level 0.

        Raises:
            GroupNotFound: there is no such group.
        """
        config = self._groups.get(group)
        limit = config.retry_max_times if max_reconsume_times is None else max_reconsume_times
        dead = retry.after_resending(reconsume_times, limit, ordered=self._locks.any_held(group))
        return None if dead is None else (self._dlq_topic(group), dead.reason)

    def _retry_topic(self, config: GroupConfig) -> None:
        """See to it that the group's retry topic is there and may be written."""
        topic = retry_topic(config.name)
        known = self._store.topic_configs.get(topic)
        if known is None:
            self._store.topic_configs.put(TopicConfig(topic, config.retry_queues, config.retry_queues))
        elif not known.perm & PERM_WRITE:
            raise PermissionDenied(f"topic {topic} may not be written")

    def _dlq_topic(self, group: str) -> str:
        topic = dlq_topic(group)
        if self._store.topic_configs.get(topic) is None:
            self._store.topic_configs.put(TopicConfig(topic, 1, 1))
        return topic


def _returned(record: Record) -> dict[str, str]:
    """The properties of a message that was not consumed: they name its origin."""
    kept = dict(record.properties)
    kept.pop(DELIVERED_FROM, None)
    kept.setdefault(properties.ORIGIN_MESSAGE_ID, record.message_id)
    kept.setdefault(properties.RETRY_TOPIC, record.topic)
    return kept
