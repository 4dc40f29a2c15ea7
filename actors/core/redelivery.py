"""A failed message goes back: to the group's retry topic through the schedule topic, or to its dead-letter queue.

Source of the properties: RocketMQ's consumerSendMsgBack.
"""

from __future__ import annotations

from raymq.actors.core import retry
from raymq.actors.core.rewriting import Append, encode_again, join
from raymq.actors.core.schedule import DELIVERED_FROM, Schedule
from raymq.actors.naming import SCHEDULE_TOPIC, check_group, dlq_topic, retry_topic
from raymq.storage import properties
from raymq.storage.errors import GroupNotFound
from raymq.storage.record import Record
from raymq.storage.store import Store
from raymq.storage.topic_config import TopicConfig


class Redelivery:
    """Takes messages back on one broker."""

    def __init__(self, store: Store, schedule: Schedule, append: Append) -> None:
        self._store = store
        self._schedule = schedule
        self._append = append

    def send_back(
        self, group: str, physical_offset: int, delay_level: int, max_reconsume_times: int | None = None
    ) -> retry.Later | retry.Dead:
        """Store the message at `physical_offset` anew for `group`; what was decided.

        Args:
            delay_level: see `retry.after_failure`.
            max_reconsume_times: the consumer's own; None takes the group's.

        Raises:
            GroupNotFound, MessageNotFound, MessageExpired.
        """
        config = self._store.group_configs.get(check_group(group))
        if config is None:
            raise GroupNotFound(f"consumer group {group} does not exist")
        record = self._store.read_at(physical_offset)
        limit = config.retry_max_times if max_reconsume_times is None else max_reconsume_times
        decision = retry.after_failure(record.reconsume_times, delay_level, limit, self._schedule.levels)
        record.properties = _returned(record)
        record.reconsume_times += 1
        if isinstance(decision, retry.Later):
            waiting = self._schedule.waiting_copy(record, retry_topic(group), 0, decision.level)
            self._append(*join([waiting]), (SCHEDULE_TOPIC, decision.level - 1))
            return decision
        self.bury(group, record, decision.reason)
        return decision

    def bury(self, group: str, record: Record, reason: str) -> None:
        """Put a message, its reconsume times as they are, into the group's dead-letter queue, made now if need be."""
        topic = dlq_topic(group)
        if self._store.topic_configs.get(topic) is None:
            self._store.topic_configs.put(TopicConfig(topic, 1, 1))
        kept = _returned(record)
        kept[properties.DELAY] = "0"
        kept[properties.DLQ_REASON] = reason
        self._append(*join([encode_again(record, topic, 0, kept)]), (topic, 0))


def _returned(record: Record) -> dict[str, str]:
    """The properties of a message that was not consumed: they name its origin."""
    kept = dict(record.properties)
    kept.pop(DELIVERED_FROM, None)
    kept.setdefault(properties.ORIGIN_MESSAGE_ID, record.message_id)
    kept.setdefault(properties.RETRY_TOPIC, record.topic)
    return kept
