"""List the messages that wait for their time, and recall one of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from raymq.actors.errors import InvalidInput, MessageNotFound, NotRecallable, RayMQError
from raymq.actors.naming import RETRY_PREFIX, check_topic
from raymq.actors.protocol import RecallStatus
from raymq.actors.recall_handle import RecallHandle
from raymq.actors.wire.commands import delay_commands
from raymq.client import arguments
from raymq.client.connection import Connection
from raymq.client.message import ReceivedMessage
from raymq.client.requests import fan_out, message_recall
from raymq.client.results import FoundMessages
from raymq.storage.delay_levels import SCHEDULE_TOPIC, TIMER_TOPIC
from raymq.storage.records import property_names as properties
from raymq.storage.records.record import Record

#: The topics in which messages wait for their time.
WAITING_TOPICS: Final = (SCHEDULE_TOPIC, TIMER_TOPIC)
_PAGE: Final = 1_000
_RECALL_SECONDS: Final = 10.0
#: Stands for the timers where levels are counted.
_TIMERS: Final = 0


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A message that waits for its time.

    Attributes:
        message: the message, with the topic to which it will be delivered.
        deliver_at: when it is due, in seconds since 1970, by its broker's clock.
        retry_of: the group whose retry it is; None for a message of a producer.
        recall_handle: recalls it; None if it waits in a delay level, from which nothing can be recalled.
    """

    message: ReceivedMessage
    deliver_at: float
    retry_of: str | None
    recall_handle: str | None


async def first(mq: Connection, topic: str | None, limit: int) -> FoundMessages[DelayedMessage]:
    """Return the messages that are due next; see `Admin.delayed_messages`."""
    if topic is not None:
        check_topic(topic)
    arguments.whole("limit", limit, 1)
    addresses = await fan_out.masters(mq)
    found: list[DelayedMessage] = []
    silent: list[str] = []
    for broker, address in addresses.items():
        try:
            found += await _of_broker(mq, broker, address, topic, limit)
        except RayMQError:
            silent.append(broker)
    fan_out.report_skipped_brokers("a delayed message", silent, found=bool(found))
    found.sort(key=lambda each: (each.deliver_at, each.message.queue, each.message.queue_offset))
    return FoundMessages(found[:limit], silent, truncated=len(found) > limit)


async def _of_broker(mq: Connection, broker: str, address: str, topic: str | None, limit: int) -> list[DelayedMessage]:
    """Return one broker's next due messages, one above the limit if there are more.

    Each delay level, and the timers, are in the order of their due times: of each only the first ones are read.
    """
    found: dict[tuple[str, str, int], DelayedMessage] = {}
    counts = Counter[int]()
    begin: list[int] | None = None
    while True:
        command = partial(delay_commands.delayed_command, topic, begin, min(_PAGE, limit + 1))
        answer = await fan_out.request_with_retry(mq, address, command, broker)
        records, begin = delay_commands.read_delayed(answer)
        for record, due_ms in records:
            # A message that is moved from a delay level to the timers is in both for a while.
            real = record.properties.get(properties.REAL_TOPIC, record.topic)
            found[record.unique_key or record.message_id, real, due_ms] = _delayed(record, broker, due_ms)
            counts[record.queue_id + 1 if record.topic == SCHEDULE_TOPIC else _TIMERS] += 1
        begin = delay_commands.skip_level(begin) if begin and counts[_part_of(begin)] > limit else begin
        if begin is None:
            return sorted(found.values(), key=lambda each: each.deliver_at)[: limit + 1]


def _part_of(begin: list[int]) -> int:
    """Return the delay level at which the next page begins, or `_TIMERS`."""
    level = delay_commands.level_of(begin)
    return _TIMERS if level is None else level


def real_message(message: ReceivedMessage) -> ReceivedMessage:
    """Return a message with the topic that it waits for, if it waits."""
    topic = message.system_properties.get(properties.REAL_TOPIC, message.topic)
    return replace(message, topic=topic) if message.topic in WAITING_TOPICS else message


def _delayed(record: Record, broker: str, due_ms: int) -> DelayedMessage:
    topic = record.properties.get(properties.REAL_TOPIC, record.topic)
    handle = None
    if record.topic == TIMER_TOPIC and record.unique_key and not topic.startswith(RETRY_PREFIX):
        handle = RecallHandle(topic, broker, due_ms, record.unique_key).encode()
    return DelayedMessage(
        real_message(ReceivedMessage.from_record(record, broker)),
        due_ms / 1000,
        topic.removeprefix(RETRY_PREFIX) if topic.startswith(RETRY_PREFIX) else None,
        handle,
    )


async def recall(mq: Connection, wanted: str) -> RecallStatus:
    """Withdraw a delayed message; see `Admin.recall`."""
    arguments.text("handle", wanted)
    try:
        handles = message_recall.handles_of(wanted)
    except InvalidInput:
        handles = message_recall.handles_of(await _handle_of(mq, wanted.upper()))
    return await message_recall.recall(mq, handles, _RECALL_SECONDS)


async def _handle_of(mq: Connection, wanted: str) -> str:
    """Return the handle of a waiting message with a message id or unique key."""
    for each in await first(mq, None, arguments.MAX_COUNT):
        if wanted in (each.message.message_id, (each.message.unique_key or "").upper()):
            if each.recall_handle is None:
                raise NotRecallable("the message waits in a delay level, from which nothing can be recalled")
            return each.recall_handle
    raise MessageNotFound(f"no waiting message has the message id or unique key {wanted}, and it is no recall handle")
