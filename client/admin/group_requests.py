"""Read the progress of consumer groups, reset their offsets, and delete them.

See `Admin` for the contract of each call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from raymq.actors.errors import (
    BrokerUnavailable,
    GroupNotFound,
    InvalidInput,
    RayMQError,
    TopicNotFound,
    group_not_found,
)
from raymq.actors.naming import check_group, check_topic, dlq_topic, retry_topic
from raymq.actors.protocol import IDLE_SECONDS, GroupContent, MessageQueue, TopicRoute
from raymq.actors.wire.commands import admin_commands as wire_admin
from raymq.actors.wire.commands import group_commands as wire_group
from raymq.actors.wire.commands import query_commands as wire_query
from raymq.actors.wire.frame import Command
from raymq.actors.wire.response_validation import read_number_field
from raymq.client import arguments
from raymq.client.connection import Connection
from raymq.client.requests import fan_out as asking
from raymq.client.results import GroupDeletion, GroupProgress, GroupSummary, QueueProgress

#: The number of groups that are queried at the same time.
_GROUPS_AT_ONCE: Final = 32


async def names(mq: Connection) -> list[str]:
    """Return the names of all consumer groups, sorted."""
    answers = asking.require_answers(await asking.request_all(mq, wire_admin.all_groups_command))
    return sorted({group for answer in answers.values() for group in wire_admin.read_groups(answer)})


async def check_exists(mq: Connection, group: str, *, dead_letters: bool = False) -> None:
    """Raise GroupNotFound if no broker has the group.

    With `dead_letters` a group that has only a dead-letter topic exists, too.
    """
    try:
        _tables(await _progress_answers(mq, group))
    except GroupNotFound:
        if not dead_letters or not await _routes(mq, dlq_topic(group)):
            raise


async def progress(mq: Connection, group: str, known_before: Iterable[MessageQueue] = ()) -> GroupProgress:
    """Return a group's progress by queue, sorted.

    Queues of `known_before` whose broker does not answer now are included with unknown values, and so are those on
    brokers that have left the routes lately.
    """
    answers = await _progress_answers(mq, group)
    tables = _tables(answers)
    received = [answer for answer in answers.values() if isinstance(answer, Command)]
    subscriptions = [wire_admin.read_subscribed(answer) for answer in received]
    waits_for = {topic for answer in received for topic in wire_admin.read_missing_topics(answer)}
    subscribed = {topic for topics in subscriptions if topics is not None for topic in topics} | {retry_topic(group)}
    has_members = any(topics is not None for topics in subscriptions)
    found = {queue: values for table in tables.values() if table is not None for queue, values in table.items()}
    silent = {broker for broker, table in tables.items() if table is None}
    lost = {queue for queue in known_before if tables.get(queue.broker) is None}
    left = (await mq.routes.cluster()).left.keys() - tables.keys()
    for route in await _routes(mq, *{queue.topic for queue in found}) if silent or left else ():
        lost |= {queue for queue in route.readable() if queue.broker in silent} | set(route.readable_away())
    table = dict.fromkeys(lost, QueueProgress(None, None, None, None))
    for queue, values in found.items():
        committed, age_ms = values.committed_offset, values.oldest_unfinished_ms
        table[queue] = QueueProgress(
            committed,
            values.max_offset,
            None if committed is None else values.max_offset - committed,
            values.owner,
            queue.topic in subscribed if has_members else None,
            values.in_flight,
            values.ready,
            None if age_ms is None else age_ms / 1000,
        )
    return GroupProgress(dict(sorted(table.items())), waits_for - {queue.topic for queue in table})


async def reset(mq: Connection, group: str, topic: str, timestamp_ms: int, *, dry_run: bool) -> dict[MessageQueue, int]:
    """Reset a group's offsets to a time; see `Admin.reset_offset_by_time`.

    Each queue continues at its first message stored at that time or later, or at its end if there is none. Return these
    offsets by queue; with `dry_run` those that would be set.
    """
    check_group(group)
    check_topic(topic)
    route = await mq.routes.get(topic, fresh=True)
    addresses, change = route.addresses, f"the offset reset of group {group} in topic {topic}"
    if dry_run:
        await check_exists(mq, group)
        would_be = dict(zip(route.readable(), await _offsets_at(mq, route, timestamp_ms), strict=True))
        await asking.check_all_updated(mq, route, change)
        return would_be
    command = partial(wire_admin.reset_offset_command, group, topic, timestamp_ms)
    answers = await asking.request_each(mq, addresses, command)
    missing = {broker for broker, answer in answers.items() if isinstance(answer, GroupNotFound)}
    if missing and len(missing) == len(answers):
        await check_exists(mq, group)
    for broker in missing:  # create the group there, so that it starts where the others continue
        make = partial(wire_group.create_group_command, group)
        await asking.request_with_retry(mq, addresses[broker], make)
        answers[broker] = await asking.request_with_retry(mq, addresses[broker], command)
    targets: dict[MessageQueue, int] = {}
    for answer in asking.require_answers(answers).values():
        targets |= wire_admin.read_reset(answer)
    await asking.check_all_updated(mq, route, change)
    return dict(sorted(targets.items()))


async def _offsets_at(mq: Connection, route: TopicRoute, timestamp_ms: int) -> list[int]:
    """Return for each readable queue the first offset stored at that time or later.

    Where there is none, it is the queue's end.
    """

    async def ask(queue: MessageQueue) -> int:
        command = partial(wire_query.offset_by_time_command, queue.topic, queue.queue_id, timestamp_ms)
        return read_number_field(await asking.request_with_retry(mq, route.addresses[queue.broker], command), "offset")

    return await asking.gather(route.readable(), ask)


async def _progress_answers(mq: Connection, group: str) -> dict[str, Command | RayMQError]:
    """Return each broker's answer about a group.

    Raise GroupNotFound if no broker has the group.
    """
    check_group(group)
    answers = await asking.request_all(mq, partial(wire_admin.consume_stats_command, group))
    if all(isinstance(answer, GroupNotFound) for answer in answers.values()):
        raise group_not_found(group)
    return answers


def _tables(
    answers: Mapping[str, Command | RayMQError],
) -> dict[str, dict[MessageQueue, wire_admin.ConsumeProgress] | None]:
    """Return each broker's progress of the group, None for a broker that does not answer.

    Raise BrokerUnavailable if a broker does not answer and the others have no progress of the group.
    """
    tables: dict[str, dict[MessageQueue, wire_admin.ConsumeProgress] | None] = {}
    for broker, answer in answers.items():
        if isinstance(answer, Command):
            tables[broker] = wire_admin.read_progress(answer)
        elif isinstance(answer, GroupNotFound):
            tables[broker] = {}
        elif isinstance(answer, BrokerUnavailable):
            tables[broker] = None
        else:
            raise answer
    unavailable = next((answer for answer in answers.values() if isinstance(answer, BrokerUnavailable)), None)
    if unavailable is not None and not any(tables.values()):
        raise unavailable
    return tables


def total_lag(progress: Mapping[MessageQueue, QueueProgress]) -> int | None:
    """Return the lag over all queues; None if no lag is known.

    Queues of topics that no member subscribes to any more are left out.
    """
    known = [each.lag for each in progress.values() if each.lag is not None and each.subscribed is not False]
    return sum(known) if known else None


async def summaries(mq: Connection) -> list[GroupSummary]:
    """Return every group with its number of members and its lag, sorted by name."""
    groups = await names(mq)
    found: list[GroupSummary | None] = []
    for first in range(0, len(groups), _GROUPS_AT_ONCE):
        found += await asking.gather(groups[first : first + _GROUPS_AT_ONCE], partial(_summary, mq))
    return [each for each in found if each is not None]


async def _summary(mq: Connection, group: str) -> GroupSummary | None:
    """Return one group's summary; None if it was deleted meanwhile."""
    try:
        lag = total_lag(await progress(mq, group))
    except GroupNotFound:
        return None
    except (BrokerUnavailable, InvalidInput):  # InvalidInput: a RocketMQ store may hold longer names than RayMQ's
        lag = None
    answers = await asking.request_all(mq, partial(wire_group.members_command, group))
    members = {
        member
        for answer in answers.values()
        if isinstance(answer, Command)
        for member in wire_group.read_members(answer)
    }
    return GroupSummary(group, len(members), lag)


async def delete(mq: Connection, group: str, *, dead_letters: bool, dry_run: bool) -> GroupDeletion:
    """See `Admin.delete_group`."""
    check_group(group)
    arguments.flag("dead_letters", dead_letters)
    arguments.flag("dry_run", dry_run)
    make = partial(wire_admin.delete_group_command, group, dead_letters=dead_letters)
    answers = asking.require_answers(await asking.request_all(mq, partial(make, dry_run=True)))
    found = {broker: wire_admin.read_group_content(answer) for broker, answer in answers.items()}
    routes = await _routes(mq, retry_topic(group), *((dlq_topic(group),) if dead_letters else ()))
    has_letters = any(route.topic == dlq_topic(group) for route in routes)
    is_known = has_letters or any(content.exists for content in found.values())
    if not is_known and not any(mq.routes.away(each) for each in routes):
        raise group_not_found(group)
    if not dry_run:
        _check_idle(group, found)
        asking.require_answers(await asking.request_all(mq, partial(make, dry_run=False)))
        for route in routes:
            await asking.check_all_updated(mq, route, f"the deletion of group {group}")
            await asking.request_name_servers(
                mq, partial(wire_admin.delete_topic_command, route.topic, from_broker=False)
            )
            mq.routes.forget(route.topic)
    contents = found.values()
    return GroupDeletion(
        group,
        offsets=sum(each.offsets for each in contents),
        in_flight=sum(each.in_flight for each in contents),
        retries=sum(each.retries for each in contents),
        dead_letters=sum(each.dead_letters for each in contents),
        deleted=not dry_run,
    )


def _check_idle(group: str, found: Mapping[str, GroupContent]) -> None:
    """Raise InvalidInput if a broker has members of the group or a recent commit.

    A commit is recent if it is less than `IDLE_SECONDS` old (a minute).
    """
    members = sorted({member for content in found.values() for member in content.members})
    if members:
        shown = ", ".join(members[:3]) + (", ..." if len(members) > 3 else "")
        raise InvalidInput(
            "group", "a group without members", f"{group} with members {shown}", remedy="stop them first"
        )
    since = min((each.since_commit for each in found.values() if each.since_commit is not None), default=IDLE_SECONDS)
    if since < IDLE_SECONDS:
        raise InvalidInput(
            "group",
            f"a group without a commit of the last {IDLE_SECONDS:.0f} s (pull consumers and Spark are not members)",
            f"{group}, which committed {since:.0f} s ago",
            remedy=f"stop its consumers, and try again in {IDLE_SECONDS - since:.0f} s",
        )


async def _routes(mq: Connection, *topics: str) -> list[TopicRoute]:
    """Return the routes of those topics that exist."""
    found = []
    for topic in topics:
        with contextlib.suppress(TopicNotFound):
            found.append(await mq.routes.get(topic, fresh=True))
    return found


async def forget_topic(mq: Connection, group: str, topic: str) -> int:
    """See `Admin.forget_topic`."""
    check_group(group)
    check_topic(topic)
    progress_now = await progress(mq, group)
    if any(each.subscribed for queue, each in progress_now.items() if queue.topic == topic):
        raise InvalidInput("topic", f"a topic that no member of {group} subscribes to", topic)
    answers = await asking.request_all(mq, partial(wire_admin.forget_topic_command, group, topic))
    known = {broker: answer for broker, answer in answers.items() if not isinstance(answer, GroupNotFound)}
    return sum(wire_admin.read_forgotten(answer) for answer in asking.require_answers(known).values())
