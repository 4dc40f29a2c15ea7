"""Send a failed message back to the retry topic, or to its dead-letter queue.

A retry waits in the schedule topic first. Source of the properties and of the rules: RocketMQ's consumerSendMsgBack and
handleRetryAndDLQ.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from raymq.actors.broker.core.copies.record_copy import DROPPABLE_DEAD_LETTER, RecordAppender, join, reencode_trimmed
from raymq.actors.broker.core.copies.republisher import (
    RETRY,
    CopyPurpose,
    MessageLocation,
    Republisher,
    location_of,
    rejection_reason,
)
from raymq.actors.broker.core.delay.schedule_message_service import DELIVERED_FROM, ScheduleMessageService
from raymq.actors.broker.core.groups.group_settings import GroupSettings
from raymq.actors.broker.core.groups.rebalance_lock_manager import RebalanceLockManager
from raymq.actors.broker.core.redelivery import retry
from raymq.actors.errors import NotFoundError, PermissionDenied, StoreCorrupt
from raymq.actors.naming import dlq_topic, retry_topic
from raymq.actors.protocol import PERM_WRITE
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.records import property_names as properties
from raymq.storage.records.failure_reason import failure_reason
from raymq.storage.records.record import Record
from raymq.storage.store import Store
from raymq.storage.tables.group_config import GroupConfig
from raymq.storage.tables.topic_config import TopicConfig


@dataclass(slots=True)
class Redelivery:
    """The redelivery of failed messages on one broker."""

    _store: Store
    _groups: GroupSettings
    _schedule: ScheduleMessageService
    _locks: RebalanceLockManager
    _append: RecordAppender
    _copying: Republisher

    def send_back(
        self,
        group: str,
        physical_offset: int,
        delay_level: int,
        max_reconsume_times: int | None = None,
        failure: str = "",
    ) -> retry.RetryLater | retry.MoveToDlq | retry.Quarantined | None:
        """Store the failed message at `physical_offset` again for `group`; return the decision.

        The result is None if the group has no retries. If the copy does not fit, the message becomes a dead letter; if
        that is not possible either, the message is quarantined.

        Args:
            delay_level: see `retry.decide_retry`.
            max_reconsume_times: the consumer's own; None takes the group's.
            failure: why the message failed, which is kept with the copy or is the reason of the dead letter; "" if
                unknown.

        Raises:
            GroupNotFound, MessageExpired, MessageNotFound, StoreCorrupt: the group or the message does not exist; an
                offset within the log is quarantined.
            PermissionDenied: the group's retry topic may not be written; the message is quarantined.
            StoreFull, StoreFailed: nothing was done.
        """
        duty = CopyPurpose(RETRY, group)
        try:
            record, config = self._failed(group, physical_offset)
        except (NotFoundError, PermissionDenied, StoreCorrupt) as error:
            if 0 <= physical_offset < self._store.max_physical_offset:
                record_id = self._copying.message_id(physical_offset)
                self._copying.quarantine(
                    duty, [MessageLocation(physical_offset=physical_offset, message_id=record_id)], str(error)
                )
            raise
        if record is None:
            return None
        limit = config.retry_max_times if max_reconsume_times is None else max_reconsume_times
        times = retry.clamp_reconsume_times(record.reconsume_times)
        failure = failure_reason(failure)
        levels = self._schedule.levels
        decision: retry.RetryLater | retry.MoveToDlq = retry.decide_retry(times, delay_level, limit, levels, failure)
        place = location_of(record)
        record.properties = _returned(record)
        record.reconsume_times = times + 1
        if isinstance(decision, retry.RetryLater):
            try:
                self._later(config, record, decision.level, failure)
            except Exception as error:  # noqa: BLE001 - an error of a stored message concerns that message only
                decision = retry.MoveToDlq(retry.no_copy_reason(rejection_reason(error), failure))
                self._store.check_ready()
            else:
                return decision
        try:
            self.send_to_dlq(group, record, decision.reason)
        except Exception as error:  # noqa: BLE001 - as above
            reason = rejection_reason(error)
            self._store.check_ready()
            self._copying.quarantine(duty, [place], reason)
            return retry.Quarantined(reason)
        return decision

    def _failed(self, group: str, physical_offset: int) -> tuple[Record | None, GroupConfig]:
        """Return the message, or None if the group has no retries, and the group's settings."""
        config = self._groups.get(group)
        if config.retry_queues <= 0:
            return None, config
        self._retry_topic(config)
        return self._store.read_at(physical_offset), config

    def _later(self, config: GroupConfig, record: Record, level: int, failure: str) -> None:
        """Store a copy that waits in the schedule topic for its next try."""
        queue_id = random.randrange(config.retry_queues)
        if failure:
            record.properties[properties.FAILURE] = failure
        waiting = self._schedule.waiting_copy(record, retry_topic(config.name), queue_id, level)
        self._append(*join([waiting]), (SCHEDULE_TOPIC, level - 1), again=True)

    def send_to_dlq(self, group: str, record: Record, reason: str) -> None:
        """Append a message to the group's dead-letter queue, which is created if missing.

        Its reconsume times stay as they are. The errors are those that `Republisher` distinguishes; nothing was stored
        then.
        """
        topic = self._dlq_topic(group)
        new_properties = _returned(record)
        new_properties[properties.DELAY] = "0"
        new_properties[properties.DLQ_REASON] = failure_reason(reason)
        self._append(
            *join([reencode_trimmed(record, topic, 0, new_properties, DROPPABLE_DEAD_LETTER)]), (topic, 0), again=True
        )

    def dlq_for_resent(
        self, group: str, reconsume_times: int, max_reconsume_times: int | None = None
    ) -> tuple[str, str] | None:
        """Return the dead-letter topic and reason for a retry that its client sent itself.

        Such a retry is an ordinary message to the group's retry topic.

        Args:
            reconsume_times: the request's, this retry included.
            max_reconsume_times: the request's; None takes the group's.

        Returns:
            None: the message belongs in the retry topic, as requested. Otherwise the dead-letter topic, which exists
            now, and the reason; in that topic its queue is 0 and its delay level 0.

        Raises:
            GroupNotFound: there is no such group.
        """
        config = self._groups.get(group)
        limit = config.retry_max_times if max_reconsume_times is None else max_reconsume_times
        dead = retry.decide_resent(
            retry.clamp_reconsume_times(reconsume_times), limit, ordered=self._locks.has_locks(group)
        )
        return None if dead is None else (self._dlq_topic(group), dead.reason)

    def _retry_topic(self, config: GroupConfig) -> None:
        """Create the group's retry topic if missing, and check that it may be written."""
        topic = retry_topic(config.name)
        known = self._store.topic_configs.get(topic)
        if known is None:
            self._store.topic_configs.put_soon(TopicConfig(topic, config.retry_queues, config.retry_queues))
        elif not known.perm & PERM_WRITE:
            raise PermissionDenied(f"topic {topic} may not be written")

    def _dlq_topic(self, group: str) -> str:
        topic = dlq_topic(group)
        if self._store.topic_configs.get(topic) is None:
            self._store.topic_configs.put_soon(TopicConfig(topic, 1, 1))
        return topic


def _returned(record: Record) -> dict[str, str]:
    """Return the properties of a failed message, which name its origin."""
    new_properties = dict(record.properties)
    new_properties.pop(DELIVERED_FROM, None)
    new_properties.pop(properties.FAILURE, None)
    new_properties.setdefault(properties.ORIGIN_MESSAGE_ID, record.message_id)
    new_properties.setdefault(properties.RETRY_TOPIC, record.topic)
    return new_properties
