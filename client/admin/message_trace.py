"""Follow one message through topics, groups, retries and dead letters; see `Admin.trace_message`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from raymq.actors.errors import BrokerUnavailable, MessageNotFound, QueueNotFound, RayMQError, TopicNotFound
from raymq.actors.naming import dlq_topic, retry_topic
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands import delay_commands
from raymq.client import arguments
from raymq.client.admin import dead_letter_requests, delayed_requests, message_search, topic_requests
from raymq.client.connection import Connection
from raymq.client.message import ReceivedMessage
from raymq.client.requests import fan_out
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.records import message_id as message_ids
from raymq.storage.records import property_names as properties

#: How many topics are searched for a unique key at the same time.
_TOPICS_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class StoredCopy:
    """A copy of the message in its topic, or one that waits for its time.

    Attributes:
        message_id: of this copy.
        state: "stored"; "waiting" for a delayed copy whose time has not come; "recalled" if it was withdrawn.
    """

    queue: MessageQueue
    queue_offset: int
    message_id: str
    store_timestamp: float
    state: str


@dataclass(frozen=True, slots=True)
class GroupConsumption:
    """What a group has made of a copy in the topic.

    Attributes:
        state: "finished", "in flight" (given out and not finished), "ready" (could be given out now, or will be after
            those before it), "waiting" (a retry waits for its time), "dead letter" (it failed for good, and was not
            redriven since), or "unknown" (the group never committed, or has no connected member, so that how far it has
            read is not known).
        offset: of the copy in its queue.
    """

    group: str
    state: str
    offset: int


@dataclass(frozen=True, slots=True)
class RetriedCopy:
    """A retry of the message, or a dead letter that was redriven.

    Attributes:
        state: as in `GroupConsumption`.
        reconsume_times: how often the message had failed.
        failure: why the last try failed; "" if it is not known.
    """

    group: str
    queue: MessageQueue
    queue_offset: int
    store_timestamp: float
    reconsume_times: int
    state: str
    failure: str


@dataclass(frozen=True, slots=True)
class DeadLetterCopy:
    """A dead letter of the message."""

    group: str
    message_id: str
    queue: MessageQueue
    queue_offset: int
    dead_at: float
    reason: str


@dataclass(frozen=True, slots=True)
class MessageTrace:
    """What became of a message.

    Attributes:
        message: the message itself.
        stored: its copies in the topic. A send that was repeated may have stored several.
        consumed: what each group of the topic has made of each of these.
        retries, dead_letters, redrives: its copies in the groups' own topics, oldest first.
        not_asked: brokers that did not answer: what they have is missing.
    """

    message: ReceivedMessage
    stored: list[StoredCopy]
    consumed: list[GroupConsumption]
    retries: list[RetriedCopy]
    dead_letters: list[DeadLetterCopy]
    redrives: list[RetriedCopy]
    not_asked: list[str]


async def trace(mq: Connection, message: str, topic: str | None) -> MessageTrace:
    """Return what became of a message; see `Admin.trace_message`."""
    return await _Trace(mq).follow(arguments.text("message_id", message), topic)


class _Trace:
    """One trace: it collects the brokers that do not answer."""

    def __init__(self, mq: Connection) -> None:
        self._mq = mq
        self._away: set[str] = set()
        #: The records that wait for their time, or have waited for it.
        self._waiting: list[ReceivedMessage] = []
        #: Where delivered copies came from: the broker, and the level and offset, as the copies name it.
        self._delivered: set[tuple[str, str]] = set()

    async def follow(self, wanted: str, topic: str | None) -> MessageTrace:
        found = await self._by_id(wanted.upper())
        if found is None:
            found = await self._by_key(wanted, topic)
        found, key = delayed_requests.real_message(found), found.unique_key
        if key is None:  # a foreign client's message without a unique key has no copies that could be found
            return await self._traced(found, [found])
        self._waiting = [each for name in delayed_requests.WAITING_TOPICS for each in await self._copies(name, key)]
        copies = await self._copies(found.topic, key)
        return await self._traced(found, copies)

    async def _by_id(self, message_id: str) -> ReceivedMessage | None:
        """Return the message with this message id; None if it may be a unique key.

        A unique key looks like a message id, so that only the address of a broker of the cluster tells them apart.
        """
        try:
            host, port, _ = message_ids.decode(message_id)
        except ValueError:
            return None
        if f"{host}:{port}" not in set((await fan_out.masters(self._mq)).values()):
            return None
        return await message_search.by_id(self._mq, message_id)

    async def _by_key(self, unique_key: str, topic: str | None) -> ReceivedMessage:
        """Return the oldest message with this unique key in a topic, or in all."""
        topics = [topic] if topic is not None else await topic_requests.names(self._mq, system=False)
        for first in range(0, len(topics), _TOPICS_AT_ONCE):
            found = await fan_out.gather(
                topics[first : first + _TOPICS_AT_ONCE], lambda name: self._copies(name, unique_key)
            )
            for copies in found:
                if copies:
                    return copies[0]
        for name in delayed_requests.WAITING_TOPICS:
            for waiting in await self._copies(name, unique_key):
                if topic is None or waiting.system_properties.get(properties.REAL_TOPIC) == topic:
                    return waiting
        if self._away:
            raise BrokerUnavailable(
                ", ".join(sorted(self._away)), f"not reachable, and no other broker has {unique_key}"
            )
        raise MessageNotFound(f"no message has the message id or unique key {unique_key}")

    async def _copies(self, topic: str, unique_key: str) -> list[ReceivedMessage]:
        """Return the messages of a topic with a unique key, oldest first."""
        try:
            found = await message_search.all_by_unique_key(self._mq, topic, unique_key)
        except (TopicNotFound, MessageNotFound):
            return []
        except BrokerUnavailable as error:
            self._away.add(error.broker)
            return []
        self._away.update(found.not_asked)
        copies = sorted(found, key=lambda message: (message.store_timestamp, message.physical_offset))
        origins = ((each.queue.broker, each.system_properties.get(properties.DELIVERED_FROM, "")) for each in copies)
        self._delivered.update(origins)
        return copies

    async def _traced(self, message: ReceivedMessage, copies: Sequence[ReceivedMessage]) -> MessageTrace:
        consumed: list[GroupConsumption] = []
        states = await fan_out.gather(copies, lambda copy: self._states(copy.queue, copy.queue_offset))
        groups = sorted({group for each in states for group in each})
        retries: list[RetriedCopy] = []
        redrives: list[RetriedCopy] = []
        dead_letters: list[DeadLetterCopy] = []
        for group in groups if message.unique_key is not None else ():
            for copy, state in await self._retries(group, message.unique_key or ""):
                is_redrive = copy.reconsume_times == 0 and properties.REDRIVEN_FROM in copy.system_properties
                (redrives if is_redrive else retries).append(_retried(group, copy, state))
            dead_letters += await self._dead_letters(group, message.unique_key or "")
        for copy, of_groups in zip(copies, states, strict=True):
            for group, state in sorted(of_groups.items()):
                later = [(e.store_timestamp, e.state) for e in [*retries, *redrives] if e.group == group]
                later += [(each.dead_at, "dead letter") for each in dead_letters if each.group == group]
                consumed.append(GroupConsumption(group, state_with_retries(state, later), copy.queue_offset))
        stored = [_stored(copy, "stored") for copy in copies]
        stored += [
            _stored(each, "recalled" if self._is_recalled(each) else "waiting")
            for each in self._waiting
            if each.system_properties.get(properties.REAL_TOPIC) == message.topic and self._still_waits(each)
        ]
        return MessageTrace(
            message,
            stored,
            consumed,
            retries,
            dead_letters,
            redrives,
            sorted(self._away),
        )

    async def _states(self, queue: MessageQueue, offset: int) -> dict[str, str]:
        """Return the state of a message in each group.

        Empty if its broker does not answer.
        """
        command = partial(delay_commands.message_states_command, queue.topic, queue.queue_id, offset)
        try:
            address = (await fan_out.masters(self._mq))[queue.broker]
            answer = await fan_out.request_with_retry(self._mq, address, command, queue.broker)
        except (TopicNotFound, QueueNotFound):
            return {}
        except (RayMQError, KeyError):
            self._away.add(queue.broker)
            return {}
        return delay_commands.read_message_states(answer)

    async def _retries(self, group: str, unique_key: str) -> list[tuple[ReceivedMessage, str]]:
        """Return a group's retries with their states, those that still wait last."""
        topic = retry_topic(group)
        found = []
        for copy in await self._copies(topic, unique_key):
            states = await self._states(copy.queue, copy.queue_offset)
            found.append((copy, states.get(group, "unknown")))
        waiting = (each for each in self._waiting if each.system_properties.get(properties.REAL_TOPIC) == topic)
        return [*found, *((each, "waiting") for each in waiting if self._still_waits(each))]

    def _still_waits(self, waiting: ReceivedMessage) -> bool:
        """Return True unless a delivered copy names this record, or it only withdraws another one."""
        level = waiting.queue.queue_id + 1 if waiting.queue.topic == SCHEDULE_TOPIC else 0
        is_withdrawal = properties.TIMER_DEL_UNIQKEY in waiting.system_properties
        return not is_withdrawal and (waiting.queue.broker, f"{level}:{waiting.queue_offset}") not in self._delivered

    def _is_recalled(self, waiting: ReceivedMessage) -> bool:
        """Return True if a record withdraws this one."""
        withdrawn = (
            each.system_properties.get(properties.TIMER_OUT_MS)
            for each in self._waiting
            if each.queue == waiting.queue and properties.TIMER_DEL_UNIQKEY in each.system_properties
        )
        return waiting.system_properties.get(properties.TIMER_OUT_MS) in set(withdrawn)

    async def _dead_letters(self, group: str, unique_key: str) -> list[DeadLetterCopy]:
        """Return the dead letters of a group that were not deleted."""
        found = []
        for copy in await self._copies(dlq_topic(group), unique_key):
            deleted = await dead_letter_requests.deleted(self._mq, copy.queue)
            if not dead_letter_requests.lies_in(deleted, copy.queue_offset):
                found.append(
                    DeadLetterCopy(
                        group,
                        copy.message_id,
                        copy.queue,
                        copy.queue_offset,
                        copy.store_timestamp,
                        copy.system_properties.get(properties.DLQ_REASON, ""),
                    )
                )
        return found


def state_with_retries(state: str, later: Sequence[tuple[float, str]]) -> str:
    """Return a message's state in a group, from the topic and its later copies.

    A message that failed is finished in its topic, and goes on as the last of its later copies.

    Args:
        later: the time in seconds and the state of each retry, dead letter and redrive; of several with the same time
            the last one counts.
    """
    return max(reversed(later), key=lambda each: each[0])[1] if state == "finished" and later else state


def _stored(copy: ReceivedMessage, state: str) -> StoredCopy:
    return StoredCopy(copy.queue, copy.queue_offset, copy.message_id, copy.store_timestamp, state)


def _retried(group: str, copy: ReceivedMessage, state: str) -> RetriedCopy:
    return RetriedCopy(
        group,
        copy.queue,
        copy.queue_offset,
        copy.store_timestamp,
        copy.reconsume_times,
        state,
        copy.failure or "",
    )
