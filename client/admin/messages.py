"""Finding single messages; see `Admin` for what each call promises."""

from __future__ import annotations

from datetime import datetime
from functools import partial

from raymq.actors.errors import MessageNotFound
from raymq.actors.naming import check_topic
from raymq.actors.wire.commands import query as wire_query
from raymq.client import arguments
from raymq.client.connection import Connection
from raymq.client.message import ReceivedMessage
from raymq.client.requests import fan_out as asking
from raymq.client.results import FoundMessages
from raymq.client.timestamps import FAR_FUTURE_MS, milliseconds
from raymq.storage.records import message_id as message_ids

#: Messages of one unique key that are looked through: a message that was retried has several copies.
_COPIES = 32


async def by_id(mq: Connection, message_id: str) -> ReceivedMessage:
    """The one at the place that the id names."""
    host, port, physical_offset = message_ids.decode(arguments.text("message_id", message_id))
    address = f"{host}:{port}"
    answer = await mq.pool.request(address, wire_query.view_command(physical_offset), asking.REQUEST_SECONDS)
    masters = (await mq.routes.cluster()).masters
    broker = next((name for name, known in masters.items() if known == address), address)
    return ReceivedMessage.from_record(wire_query.read_records(answer)[0], broker)


async def by_unique_key(mq: Connection, topic: str, unique_key: str) -> ReceivedMessage:
    """The newest one."""
    found = await _query(mq, topic, unique_key, None, None, _COPIES, unique=True)
    matching = (message for message in found if message.unique_key == unique_key)
    newest = next(matching, None)
    asking.check_all_asked(f"a message of {topic} with the unique key", found.not_asked, found=newest is not None)
    if newest is not None:
        return newest
    raise MessageNotFound(f"no message of {topic} has the unique key {unique_key}")


async def by_key(
    mq: Connection, topic: str, key: str, begin: float | datetime | None, end: float | datetime | None, limit: int
) -> FoundMessages[ReceivedMessage]:
    """The newest ones, newest first."""
    arguments.whole("limit", limit, 1)
    found = await _query(mq, topic, key, begin, end, limit, unique=False)
    matching = [message for message in found if key in message.keys][:limit]
    asking.check_all_asked(f"a message of {topic} with the key", found.not_asked, found=bool(matching))
    return FoundMessages(matching, found.not_asked)


async def _query(
    mq: Connection,
    topic: str,
    key: str,
    begin: float | datetime | None,
    end: float | datetime | None,
    limit: int,
    *,
    unique: bool,
) -> FoundMessages[ReceivedMessage]:
    check_topic(topic)
    arguments.text("unique_key" if unique else "key", key)
    begin_ms = 0 if begin is None else milliseconds("begin", begin) // 1000 * 1000
    end_ms = FAR_FUTURE_MS if end is None else milliseconds("end", end) // 1000 * 1000 + 999
    route = await mq.routes.readable(topic)
    addresses, away = route.addresses, mq.routes.away(route)
    command = partial(wire_query.query_command, topic, key, begin_ms, end_ms, limit, unique=unique)
    answers = await asking.ask_each(mq, addresses, command)
    empty = {broker for broker, answer in answers.items() if isinstance(answer, MessageNotFound)}
    answers = {broker: answer for broker, answer in answers.items() if broker not in empty}
    found = [
        ReceivedMessage.from_record(record, broker)
        for broker, answer in asking.unless_refused(answers).items()
        for record in wire_query.read_records(answer)
    ]
    found.sort(key=lambda message: (message.store_timestamp, message.physical_offset), reverse=True)
    return FoundMessages(found, away)
