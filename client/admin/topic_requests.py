"""Create, change, list and delete topics; see `Admin` for the contract of each call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from raymq.actors.errors import BrokerUnavailable, InvalidInput, RayMQError, TopicNotFound
from raymq.actors.naming import MAX_QUEUES, check_sendable, check_topic, is_system_topic, reply_topic
from raymq.actors.protocol import MESSAGE_TYPE, PERM_READ, PERM_WRITE, MessageQueue, MessageType
from raymq.actors.wire.commands import admin_commands as wire_admin
from raymq.actors.wire.frame import Command
from raymq.client import arguments
from raymq.client.connection import Connection
from raymq.client.requests import fan_out as asking
from raymq.client.results import QueueStats, TopicConfig

#: A broker that takes longer is left out where silent brokers are.
_SILENT_SECONDS: Final = 2.0


async def create(
    mq: Connection, topic: str, queues: int, *, ordered: bool, message_type: str | MessageType | None = None
) -> None:
    """Create a topic on every broker."""
    check_topic(topic)
    check_sendable(topic)
    arguments.whole("queues", queues, 1, MAX_QUEUES)
    arguments.flag("ordered", ordered)
    of_type = checked_type(message_type)
    command = partial(wire_admin.create_topic_command, topic, queues, ordered=ordered, message_type=of_type)
    asking.require_answers(await asking.request_all(mq, command))
    mq.routes.invalidate(topic)


def checked_type(message_type: str | MessageType | None) -> MessageType | None:
    """Return the message type of that name. Raise InvalidInput if there is none."""
    if message_type is None or isinstance(message_type, MessageType):
        return message_type
    try:
        return MessageType(message_type.upper() if isinstance(message_type, str) else message_type)
    except ValueError:
        limit = f"None or one of {', '.join(each.value for each in MessageType)}"
        raise InvalidInput("message_type", limit, message_type) from None


async def _answers(
    mq: Connection, topic: str, command: Callable[[], Command], *, skip_silent: bool
) -> dict[str, Command]:
    """Return the answers of a topic's brokers, by name.

    With `skip_silent` only of those that answer within `_SILENT_SECONDS`.

    Raises:
        TopicNotFound, BrokerUnavailable: there is no such topic; a broker does not answer, or with `skip_silent` none.
    """
    check_topic(topic)
    if not skip_silent:
        return await asking.request_topic_brokers(mq, topic, command)
    addresses = (await mq.routes.readable(topic, fresh=True)).addresses

    async def ask(broker: str) -> Command | RayMQError:
        try:
            return await mq.pool.request(addresses[broker], command(), _SILENT_SECONDS, eager=True)
        except RayMQError as error:
            return error

    answers = dict(zip(sorted(addresses), await asking.gather(sorted(addresses), ask), strict=True))
    answered = {broker: each for broker, each in answers.items() if not isinstance(each, BrokerUnavailable)}
    return asking.require_answers(answered or answers)


async def config(mq: Connection, topic: str, *, skip_silent: bool = False) -> TopicConfig:
    """Return a topic's settings; see `Admin.topic_config`."""
    command = partial(wire_admin.topic_config_command, topic)
    answers = await _answers(mq, topic, command, skip_silent=arguments.flag("skip_silent", skip_silent))
    _, answer = min(answers.items())
    told = wire_admin.read_topic_settings(answer)
    attributes = told.attributes
    found = attributes.get(MESSAGE_TYPE)
    return TopicConfig(
        queues=told.request.write_queue_nums,
        permission=told.request.perm,
        ordered=told.request.order,
        message_type=found if found in MessageType.__members__ else None,
        attributes=dict(attributes),
    )


def check_change(
    topic: str,
    *,
    read_queues: int | None,
    write_queues: int | None,
    permission: int | None,
    ordered: bool | None,
) -> None:
    """Raise InvalidInput if a setting is invalid for every topic."""
    check_topic(topic)
    check_sendable(topic)
    for field, queues in (("read_queues", read_queues), ("write_queues", write_queues)):
        if queues is not None:
            arguments.whole(field, queues, 1, MAX_QUEUES)
    if permission is not None and permission not in (0, PERM_WRITE, PERM_READ, PERM_READ | PERM_WRITE):
        raise InvalidInput("permission", "a sum of 4 (read) and 2 (write)", permission)
    if ordered is not None:
        arguments.flag("ordered", ordered)


async def update(
    mq: Connection,
    topic: str,
    *,
    read_queues: int | None,
    write_queues: int | None,
    permission: int | None,
    ordered: bool | None,
    message_type: str | MessageType | None = None,
    dry_run: bool = False,
) -> None:
    """Change a topic on every broker that has it, starting from the broker's own settings."""
    check_change(topic, read_queues=read_queues, write_queues=write_queues, permission=permission, ordered=ordered)
    of_type = checked_type(message_type)
    known = await asking.request_topic_brokers(mq, topic, partial(wire_admin.topic_config_command, topic))
    route = await mq.routes.get(topic)
    addresses = route.addresses  # a broker that left meanwhile is skipped here and reported by the check below
    for broker, answer in known.items() if not dry_run else ():
        if broker not in addresses:
            continue
        command = partial(
            wire_admin.update_topic_command,
            wire_admin.read_topic_config(answer),
            read_queues=read_queues,
            write_queues=write_queues,
            permission=permission,
            ordered=ordered,
            message_type=of_type,
        )
        await asking.request_with_retry(mq, addresses[broker], command, broker)
    mq.routes.invalidate(topic)
    await asking.check_all_updated(mq, route, f"the change of topic {topic}")


async def delete(mq: Connection, topic: str) -> None:
    """Delete a topic on every broker and name server."""
    check_topic(topic)
    check_sendable(topic)
    route = await mq.routes.get(topic, fresh=True)
    command = partial(wire_admin.delete_topic_command, topic, from_broker=True)
    answers = await asking.request_all(mq, command)
    # A broker without the topic may have deleted it for an earlier request whose answer was lost.
    asking.require_answers({name: each for name, each in answers.items() if not isinstance(each, TopicNotFound)})
    await asking.check_all_updated(mq, route, f"the deletion of topic {topic}")
    await asking.request_name_servers(mq, partial(wire_admin.delete_topic_command, topic, from_broker=False))
    mq.routes.forget(topic)


async def names(mq: Connection, *, system: bool) -> list[str]:
    """Return the names of topics, sorted; system topics only with `system`."""
    topics = await mq.routes.topics()
    if system:
        return topics
    brokers = (await mq.routes.cluster()).brokers
    own = {name for broker, (cluster, _) in brokers.items() for name in (broker, cluster, reply_topic(cluster))}
    return [topic for topic in topics if not is_system_topic(topic) and topic not in own]


async def stats(mq: Connection, topic: str, *, skip_silent: bool = False) -> dict[MessageQueue, QueueStats]:
    """Return the statistics of each queue of a topic, sorted by queue; see `Admin.topic_stats`."""
    command = partial(wire_admin.topic_stats_command, topic)
    answers = await _answers(mq, topic, command, skip_silent=arguments.flag("skip_silent", skip_silent))
    return {
        queue: QueueStats(low, end, last_ms / 1000)
        for answer in answers.values()
        for queue, (low, end, last_ms) in sorted(wire_admin.read_topic_stats(answer).items())
    }
