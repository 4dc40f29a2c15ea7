"""Gather the facts about a consumer group from the brokers and its members; see `Admin.explain_group`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from raymq.actors.errors import BrokerUnavailable, RayMQError, TopicNotFound
from raymq.actors.filter.tag_expression import TAG
from raymq.actors.naming import check_group, dlq_topic, retry_topic
from raymq.actors.protocol import PERM_READ, GroupContent, MessageQueue
from raymq.actors.wire.commands import admin_commands as wire_admin
from raymq.actors.wire.commands import member_commands as wire_members
from raymq.actors.wire.commands.member_commands import GroupConnections, MemberStatus
from raymq.actors.wire.frame import Command
from raymq.client import arguments
from raymq.client.admin import dead_letter_requests, group_requests, topic_reader, topic_requests
from raymq.client.admin.group_diagnosis import (
    DeadLetterFacts,
    GroupDiagnosis,
    GroupFacts,
    MemberFacts,
    QueueFacts,
    TopicFacts,
    diagnose,
)
from raymq.client.connection import Connection
from raymq.client.members.tag_filter import TagFilter
from raymq.client.message import ReceivedMessage
from raymq.client.requests import fan_out as asking
from raymq.client.results import GroupMemberInfo, QueueStats
from raymq.storage.records import property_names as properties

#: The time between the two looks at the offsets: a success is committed half a second later.
_BETWEEN_SECONDS: Final = 1.5
_STATUS_SECONDS: Final = 2.0
#: How many of the newest messages of a queue are read, to see what a filter excludes; and of how many queues.
_NEWEST: Final = 16
_READ_SECONDS: Final = 3.0
_QUEUES_READ: Final = 8


async def explain(mq: Connection, group: str, hang_after: float) -> GroupDiagnosis:
    """Return why a group does not move; see `Admin.explain_group`."""
    check_group(group)
    hang_seconds = arguments.duration("hang_after", hang_after)
    before, began = await group_requests.progress(mq, group), time.monotonic()
    await asyncio.sleep(_BETWEEN_SECONDS)
    now = await group_requests.progress(mq, group, before)
    seconds = time.monotonic() - began
    unreachable, connections = await _connections(mq, group)
    tables = list(connections.values())
    subscriptions = {topic: each for table in tables for topic, each in table.subscriptions.items()}
    subscriptions.pop(retry_topic(group), None)
    for_all = {broker: _plain(each, retry_topic(group)) for broker, each in connections.items()}
    has_one = len(set(for_all.values())) <= 1
    present = [topic for topic in subscriptions if topic not in now.missing_topics]
    topics = await asking.gather(present, lambda topic: _topic_facts(mq, group, topic, subscriptions[topic]))
    content = await _content(mq, group)
    away = await _away(mq, {*present, *(queue.topic for queue in now)})
    return diagnose(
        GroupFacts(
            group,
            seconds,
            members=await _members(mq, group, connections),
            pops=any(each.consume_type == "CONSUME_POP" for each in tables),
            broadcasts=any(each.message_model == "BROADCASTING" for each in tables),
            topics=dict(zip(present, topics, strict=True)),
            queues=[QueueFacts(queue, before.get(queue), each) for queue, each in now.items()],
            missing_topics=now.missing_topics,
            unreachable=sorted({*unreachable, *away}),
            differing=[] if has_one else sorted(for_all),
            since_commit=min((each.since_commit for each in content if each.since_commit is not None), default=None),
            retries=sum(each.retries for each in content) if content else None,
            dead_letters=sum(each.dead_letters for each in content) if content else None,
            newest_dead=await _newest_dead(mq, group),
            hang_seconds=hang_seconds,
        )
    )


async def members(mq: Connection, group: str) -> list[GroupMemberInfo]:
    """Return the connected members of a group; see `Admin.group_members`."""
    progress = await group_requests.progress(mq, check_group(group))
    _, connections = await _connections(mq, group)
    known = {member.client_id: member for each in connections.values() for member in each.members}
    statuses = {each.client_id: each.status for each in await _members(mq, group, connections)}
    return [
        GroupMemberInfo(
            client_id,
            known[client_id].address,
            known[client_id].language,
            sorted(queue for queue, each in progress.items() if each.owner == client_id),
            None if status is None else status.paused,
            None if status is None else len(status.calls),
            None if status is None else max((call.seconds for call in status.calls), default=0.0),
        )
        for client_id, status in sorted(statuses.items())
    ]


async def _connections(mq: Connection, group: str) -> tuple[list[str], dict[str, GroupConnections]]:
    """Return the brokers without an answer, and the group's members at the others."""
    answers = await asking.request_all(mq, partial(wire_members.connections_command, group))
    silent = [broker for broker, answer in answers.items() if isinstance(answer, BrokerUnavailable)]
    return silent, {
        broker: wire_members.read_connections(answer)
        for broker, answer in answers.items()
        if isinstance(answer, Command)
    }


async def _away(mq: Connection, topics: Iterable[str]) -> set[str]:
    """Return the topics' brokers that left the routes and are expected back."""
    found: set[str] = set()
    for topic in topics:
        with contextlib.suppress(TopicNotFound):
            found.update(mq.routes.away(await mq.routes.get(topic, fresh=True)))
    return found


def _plain(connections: GroupConnections, own_topic: str) -> frozenset[tuple[str, tuple[str, str]]]:
    """Return the subscriptions without the group's retry topic, for comparison."""
    return frozenset((topic, each) for topic, each in connections.subscriptions.items() if topic != own_topic)


async def _members(mq: Connection, group: str, connections: Mapping[str, GroupConnections]) -> list[MemberFacts]:
    """Return the members with what each reports about itself, through one of its brokers."""
    addresses = await asking.masters(mq)
    brokers = {member.client_id: broker for broker, each in connections.items() for member in each.members}

    async def status(client_id: str) -> MemberStatus | None:
        command = wire_members.member_status_command(group, client_id)
        try:
            answer = await mq.pool.request(addresses[brokers[client_id]], command, _STATUS_SECONDS)
            return wire_members.read_member_status(answer)
        except (RayMQError, KeyError):  # another language's client, or one that has left
            return None

    found = sorted(brokers)
    return [MemberFacts(*each) for each in zip(found, await asking.gather(found, status), strict=True)]


async def _topic_facts(mq: Connection, group: str, topic: str, subscription: tuple[str, str]) -> TopicFacts:
    """Return the facts of one subscribed topic; what a broker does not answer stays unknown."""
    kind, expression = subscription
    try:
        settings = await topic_requests.config(mq, topic)
        stats = await topic_requests.stats(mq, topic)
        allowed = await _is_allowed(mq, group, topic)
        newest = await _newest(mq, topic, stats) if expression != "*" and settings.permission & PERM_READ else None
    except (RayMQError, TimeoutError):
        return TopicFacts(expression)
    last = max((each.last_store_timestamp for each in stats.values()), default=0.0)
    passing = None
    if newest is not None and kind == TAG:
        tag_filter = TagFilter.parse(expression)
        passing = sum(tag_filter.passes(message.tags) for message in newest)
    return TopicFacts(
        expression,
        allowed,
        bool(settings.permission & PERM_READ),
        max(0.0, time.time() - last) if last > 0 else None,
        None if newest is None else [message.tags for message in newest],
        passing,
    )


async def _is_allowed(mq: Connection, group: str, topic: str) -> bool:
    """Return False if a broker forbids the group to read the topic."""
    answers = await asking.request_topic_brokers(mq, topic, partial(wire_members.forbidden_command, group, topic))
    return all(wire_members.read_is_readable(answer) for answer in answers.values())


async def _newest(mq: Connection, topic: str, stats: Mapping[MessageQueue, QueueStats]) -> list[ReceivedMessage]:
    """Return some of a topic's newest messages, from the queues that got one last.

    Raises:
        TimeoutError: the read would wait for brokers that are away.
    """
    by_time = sorted(stats, key=lambda queue: -stats[queue].last_store_timestamp)[:_QUEUES_READ]
    starts = {queue: max(stats[queue].min_offset, stats[queue].max_offset - _NEWEST) for queue in by_time}
    reading = topic_reader.messages(mq, topic, starts, "*", follow=False)
    async with asyncio.timeout(_READ_SECONDS), contextlib.aclosing(reading):
        return [message async for message in reading] if starts else []


async def _content(mq: Connection, group: str) -> Sequence[GroupContent]:
    """Return what each broker has of the group.

    Empty if one of them does not say.
    """
    make = partial(wire_admin.delete_group_command, group, dead_letters=False, dry_run=True)
    answers = await asking.request_all(mq, make)
    found = [wire_admin.read_group_content(answer) for answer in answers.values() if isinstance(answer, Command)]
    return found if len(found) == len(answers) else []


async def _newest_dead(mq: Connection, group: str) -> list[DeadLetterFacts]:
    """Return the newest dead letters that were not deleted, newest first."""
    topic = dlq_topic(group)
    try:
        stats = await topic_requests.stats(mq, topic)
        found = await _newest(mq, topic, stats)
        deleted = {queue: await dead_letter_requests.deleted(mq, queue) for queue in stats}
    except (TopicNotFound, BrokerUnavailable, TimeoutError):
        return []
    now = time.time()
    return [
        DeadLetterFacts(
            message.message_id,
            max(0.0, now - message.store_timestamp),
            message.system_properties.get(properties.DLQ_REASON, ""),
        )
        for message in sorted(found, key=lambda message: -message.store_timestamp)
        if not dead_letter_requests.lies_in(deleted.get(message.queue, []), message.queue_offset)
    ]
