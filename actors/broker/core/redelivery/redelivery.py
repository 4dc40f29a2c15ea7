"""A failed message goes back: to the group's retry topic through the schedule topic, or to its dead-letter queue.

Source of the properties and of the rules: RocketMQ's consumerSendMsgBack and handleRetryAndDLQ.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from raymq.actors.broker.core.copies.copying import RETRY, Copying, Duty, Place, place_of, reason_of
from raymq.actors.broker.core.copies.rewriting import SPARE_DEAD, Append, encode_fitting, join
from raymq.actors.broker.core.delay.schedule import DELIVERED_FROM, Schedule
from raymq.actors.broker.core.groups.locks import QueueLocks
from raymq.actors.broker.core.groups.settings import GroupSettings
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
    """Takes messages back on one broker."""

    _store: Store
    _groups: GroupSettings
    _schedule: Schedule
    _locks: QueueLocks
    _append: Append
    _copying: Copying

    def send_back(
        self,
        group: str,
        physical_offset: int,
        delay_level: int,
        max_reconsume_times: int | None = None,
        failure: str = "",
    ) -> retry.Later | retry.Dead | retry.PutAside | None:
        """Store the message at `physical_offset` anew for `group`; what was decided, None if it wants no retries.

        A copy that there is no room for becomes a dead letter; what that cannot be made of either is set aside.

        Args:
            delay_level: see `retry.after_failure`.
            max_reconsume_times: the consumer's own; None takes the group's.
            failure: why it failed, which is kept with the copy or is the reason of the dead letter; "" if unknown.

        Raises:
            GroupNotFound, MessageExpired, MessageNotFound, StoreCorrupt: the group is gone, or the message; what was
                there is set aside.
            PermissionDenied: the group's retry topic may not be written; it is set aside.
            StoreFull, StoreFailed: nothing was done.
        """
        duty = Duty(RETRY, group)
        try:
            record, config = self._failed(group, physical_offset)
        except (NotFoundError, PermissionDenied, StoreCorrupt) as error:
            if 0 <= physical_offset < self._store.max_physical_offset:
                told = self._copying.message_id(physical_offset)
                self._copying.refuse(duty, [Place(physical_offset=physical_offset, message_id=told)], str(error))
            raise
        if record is None:
            return None
        limit = config.retry_max_times if max_reconsume_times is None else max_reconsume_times
        times = retry.counted(record.reconsume_times)
        failure = failure_reason(failure)
        levels = self._schedule.levels
        decision: retry.Later | retry.Dead = retry.after_failure(times, delay_level, limit, levels, failure)
        place = place_of(record)
        record.properties = _returned(record)
        record.reconsume_times = times + 1
        if isinstance(decision, retry.Later):
            try:
                self._later(config, record, decision.level, failure)
            except Exception as error:  # noqa: BLE001 - whatever a stored byte causes is that message's outcome
                decision = retry.Dead(retry.no_copy(reason_of(error), failure))
                self._store.check_ready()
            else:
                return decision
        try:
            self.bury(group, record, decision.reason)
        except Exception as error:  # noqa: BLE001 - as above
            reason = reason_of(error)
            self._store.check_ready()
            self._copying.refuse(duty, [place], reason)
            return retry.PutAside(reason)
        return decision

    def _failed(self, group: str, physical_offset: int) -> tuple[Record | None, GroupConfig]:
        """The message, None if the group wants no retries, and the group's settings."""
        config = self._groups.get(group)
        if config.retry_queues <= 0:
            return None, config
        self._retry_topic(config)
        return self._store.read_at(physical_offset), config

    def _later(self, config: GroupConfig, record: Record, level: int, failure: str) -> None:
        """Let a message wait for its next try."""
        queue_id = random.randrange(config.retry_queues)
        if failure:
            record.properties[properties.FAILURE] = failure
        waiting = self._schedule.waiting_copy(record, retry_topic(config.name), queue_id, level)
        self._append(*join([waiting]), (SCHEDULE_TOPIC, level - 1), again=True)

    def bury(self, group: str, record: Record, reason: str) -> None:
        """Put a message, its reconsume times as they are, into the group's dead-letter queue, made now if need be.

        It raises what `Copying` tells apart; nothing was stored then.
        """
        topic = self._dlq_topic(group)
        kept = _returned(record)
        kept[properties.DELAY] = "0"
        kept[properties.DLQ_REASON] = failure_reason(reason)
        self._append(*join([encode_fitting(record, topic, 0, kept, SPARE_DEAD)]), (topic, 0), again=True)

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
        dead = retry.after_resending(retry.counted(reconsume_times), limit, ordered=self._locks.any_held(group))
        return None if dead is None else (self._dlq_topic(group), dead.reason)

    def _retry_topic(self, config: GroupConfig) -> None:
        """See to it that the group's retry topic is there and may be written."""
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
    """The properties of a message that was not consumed: they name its origin."""
    kept = dict(record.properties)
    kept.pop(DELIVERED_FROM, None)
    kept.pop(properties.FAILURE, None)
    kept.setdefault(properties.ORIGIN_MESSAGE_ID, record.message_id)
    kept.setdefault(properties.RETRY_TOPIC, record.topic)
    return kept
