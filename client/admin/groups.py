"""How far consumer groups are, and sending them elsewhere; see `Admin` for what each call promises."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from raymq.actors.errors import BrokerUnavailable, GroupNotFound
from raymq.actors.naming import check_group, check_topic
from raymq.actors.protocol import MessageQueue, TopicRoute
from raymq.actors.wire.commands import admin as wire_admin
from raymq.actors.wire.commands import group as wire_group
from raymq.actors.wire.commands import query as wire_query
from raymq.actors.wire.frame import Command
from raymq.actors.wire.told import number_in
from raymq.client.connection import Connection
from raymq.client.requests import fan_out as asking
from raymq.client.results import GroupProgress, QueueProgress


async def names(mq: Connection) -> list[str]:
    """Sorted."""
    answers = asking.unless_refused(await asking.ask_all(mq, wire_admin.all_groups_command))
    return sorted({group for answer in answers.values() for group in wire_admin.read_groups(answer)})


async def check_exists(mq: Connection, group: str) -> None:
    """GroupNotFound if no broker knows the group."""
    await _progress_tables(mq, group)


async def progress(mq: Connection, group: str, known_before: Iterable[MessageQueue] = ()) -> GroupProgress:
    """By queue, sorted; of `known_before` also those whose broker does not answer now."""
    waits_for: set[str] = set()
    tables = await _progress_tables(mq, group, waits_for)
    found = {queue: values for table in tables.values() if table is not None for queue, values in table.items()}
    silent = {broker for broker, table in tables.items() if table is None}
    lost = {queue for queue in known_before if tables.get(queue.broker) is None}
    for topic in {queue.topic for queue in found} if silent else ():
        lost |= {queue for queue in (await mq.routes.get(topic)).readable() if queue.broker in silent}
    table = dict.fromkeys(lost, QueueProgress(None, None, None, None))
    for queue, values in found.items():
        committed, end, owner = values
        table[queue] = QueueProgress(committed, end, None if committed is None else end - committed, owner)
    return GroupProgress(dict(sorted(table.items())), waits_for - {queue.topic for queue in table})


async def reset(mq: Connection, group: str, topic: str, timestamp_ms: int, *, dry_run: bool) -> dict[MessageQueue, int]:
    """To the first message stored then or later, else the end; where each queue goes on, or would with `dry_run`."""
    check_group(group)
    check_topic(topic)
    route = await mq.routes.get(topic, fresh=True)
    addresses, told = route.addresses, f"where group {group} goes on in topic {topic}"
    if dry_run:
        await check_exists(mq, group)
        would_be = dict(zip(route.readable(), await _offsets_at(mq, route, timestamp_ms), strict=True))
        await asking.check_all_told(mq, route, told)
        return would_be
    command = partial(wire_admin.reset_offset_command, group, topic, timestamp_ms)
    answers = await asking.ask_each(mq, addresses, command)
    missing = {broker for broker, answer in answers.items() if isinstance(answer, GroupNotFound)}
    if missing and len(missing) == len(answers):
        await check_exists(mq, group)
    for broker in missing:  # it has not heard of the group yet; then it shall begin where the others go on
        make = partial(wire_group.create_group_command, group)
        await asking.ask_broker(mq, addresses[broker], make)
        answers[broker] = await asking.ask_broker(mq, addresses[broker], command)
    targets: dict[MessageQueue, int] = {}
    for answer in asking.unless_refused(answers).values():
        targets |= wire_admin.read_reset(answer)
    await asking.check_all_told(mq, route, told)
    return dict(sorted(targets.items()))


async def _offsets_at(mq: Connection, route: TopicRoute, timestamp_ms: int) -> list[int]:
    """Of each readable queue the first offset stored then or later, else the end."""

    async def ask(queue: MessageQueue) -> int:
        command = partial(wire_query.time_command, queue.topic, queue.queue_id, timestamp_ms)
        return number_in(await asking.ask_broker(mq, route.addresses[queue.broker], command), "offset")

    return await asking.gather(route.readable(), ask)


async def _progress_tables(
    mq: Connection, group: str, waits_for: set[str] | None = None
) -> dict[str, dict[MessageQueue, wire_admin.Progress] | None]:
    """Of each broker: what it knows of the group, None if it does not answer; GroupNotFound, BrokerUnavailable.

    The topics that members wait for are added to `waits_for`.
    """
    check_group(group)
    answers = await asking.ask_all(mq, partial(wire_admin.consume_stats_command, group))
    if all(isinstance(answer, GroupNotFound) for answer in answers.values()):
        raise GroupNotFound(f"consumer group {group} does not exist")
    tables: dict[str, dict[MessageQueue, wire_admin.Progress] | None] = {}
    for broker, answer in answers.items():
        if isinstance(answer, Command):
            tables[broker] = wire_admin.read_progress(answer)
            if waits_for is not None:
                waits_for |= wire_admin.read_waits_for(answer)
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
