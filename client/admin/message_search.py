"""Find single messages; see `Admin` for the contract of each call."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from datetime import datetime
from functools import partial
from typing import Final, Self

from raymq.actors.errors import BrokerUnavailable, MessageNotFound
from raymq.actors.naming import check_topic
from raymq.actors.protocol import TopicRoute
from raymq.actors.wire.commands import query_commands as wire_query
from raymq.client import arguments
from raymq.client.connection import Connection
from raymq.client.message import ReceivedMessage
from raymq.client.requests import fan_out as asking
from raymq.client.results import FoundMessages
from raymq.client.timestamps import FAR_FUTURE_MS, milliseconds
from raymq.storage.records import message_id as message_ids
from raymq.storage.records import message_limits as record_limits

#: Messages per broker that are searched for one unique key: a message that was retried has several copies.
_COPIES = 32
#: The first and the largest page size, in messages; brokers return at most `_MAX_PAGE`.
_PAGE: Final = 256
_MAX_PAGE: Final = 10_000
#: Brokers end an answer before it is longer than this.
_ANSWER_BYTES: Final = 15 << 20


async def by_id(mq: Connection, message_id: str) -> ReceivedMessage:
    """Return the message at the position that the id encodes."""
    host, port, physical_offset = message_ids.decode(arguments.text("message_id", message_id))
    address = f"{host}:{port}"
    command = wire_query.view_message_command(physical_offset)
    try:
        answer = await mq.pool.request(address, command, asking.REQUEST_SECONDS)
    except BrokerUnavailable as error:
        if address in (await mq.routes.cluster()).masters.values():
            raise
        reason = f"no live broker of the cluster has this address, which the message id {message_id} names"
        remedy = "check the id; if the broker restarted at another address, search by unique key or key"
        raise BrokerUnavailable(address, reason, remedy=remedy) from error
    masters = (await mq.routes.cluster()).masters
    broker = next((name for name, known in masters.items() if known == address), address)
    return ReceivedMessage.from_record(wire_query.read_records(answer)[0], broker)


async def by_unique_key(mq: Connection, topic: str, unique_key: str) -> ReceivedMessage:
    """Return the newest message with the unique key; see `Admin.query_by_unique_key`."""
    found = await all_by_unique_key(mq, topic, unique_key)
    newest = found[0] if found else None
    asking.report_skipped_brokers(
        f"a message of {topic} with the unique key", found.not_asked, found=newest is not None
    )
    if newest is not None:
        return newest
    raise MessageNotFound(f"no message of {topic} has the unique key {unique_key}")


async def by_key(
    mq: Connection, topic: str, key: str, begin: float | datetime | None, end: float | datetime | None, limit: int
) -> FoundMessages[ReceivedMessage]:
    """Return the newest messages with the key, newest first; see `Admin.query_by_key`."""
    arguments.whole("limit", limit, 1)
    found: list[ReceivedMessage] = []
    search = await _Search.begin(mq, topic, key, begin, end, min(limit + 1, _PAGE), skip_silent=True)
    truncated = False
    async for message in search.messages():
        if len(found) == limit:
            truncated = True
            break
        found.append(message)
    asking.report_skipped_brokers(f"a message of {topic} with the key", search.away, found=bool(found))
    return FoundMessages(found, search.away, truncated=truncated)


async def all_by_key(
    mq: Connection, topic: str, key: str, begin: float | datetime | None, end: float | datetime | None
) -> AsyncGenerator[ReceivedMessage]:
    """Iterate over all messages with the key, newest first.

    One page of each broker is in memory at a time.
    """
    search = await _Search.begin(mq, topic, key, begin, end, _PAGE)
    found = False
    async for message in search.messages():
        found = True
        yield message
    asking.report_skipped_brokers(f"a message of {topic} with the key", search.away, found=found)


async def following(found: AsyncIterator[ReceivedMessage]) -> ReceivedMessage | None:
    """Return the next message; None after the last one."""
    return await anext(found, None)


class _Search:
    """A search for the messages of a topic that carry a key, newest first."""

    def __init__(
        self,
        mq: Connection,
        route: TopicRoute,
        key: str,
        begin_ms: int,
        end_ms: int,
        page: int,
        *,
        skip_silent: bool,
    ) -> None:
        self._mq = mq
        self._route = route
        self._key = key
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        self._page = page
        self._skip_silent = skip_silent
        #: Brokers of the topic that are away; with `skip_silent` also those that did not answer.
        self.away = mq.routes.away(route)

    @classmethod
    async def begin(
        cls,
        mq: Connection,
        topic: str,
        key: str,
        begin: float | datetime | None,
        end: float | datetime | None,
        page: int,
        *,
        skip_silent: bool = False,
    ) -> Self:
        """Check the arguments and look up the topic's brokers.

        Raise TopicNotFound if the topic does not exist, and InvalidInput if an argument breaks its rule.
        """
        check_topic(topic)
        arguments.text("key", key)
        return cls(mq, await mq.routes.readable(topic), key, *_window(begin, end), page, skip_silent=skip_silent)

    async def messages(self) -> AsyncGenerator[ReceivedMessage]:
        """Iterate over the messages of all available brokers, merged by store time.

        Raise the first error of a broker, with `skip_silent` only if it has answered.
        """
        sources = [self._available(*each) for each in sorted(self._route.addresses.items())]
        heads = await asking.gather(sources, following)
        while any(head is not None for head in heads):
            newest = max((each for each in enumerate(heads) if each[1] is not None), key=lambda each: _age(each[1]))[0]
            head = heads[newest]
            assert head is not None
            yield head
            heads[newest] = await following(sources[newest])

    async def _available(self, broker: str, address: str) -> AsyncGenerator[ReceivedMessage]:
        try:
            async for message in self._of_broker(broker, address):
                yield message
        except BrokerUnavailable:
            if not self._skip_silent:
                raise
            self.away = sorted({*self.away, broker})

    async def _of_broker(self, broker: str, address: str) -> AsyncGenerator[ReceivedMessage]:
        """Iterate over one broker's messages.

        Each page begins at the store time at which the previous one ended.
        """
        longest = self._route.body_limits.get(broker) or record_limits.MAX_MESSAGE_BYTES
        end_ms, page, seen = self._end_ms, self._page, set[int]()
        while True:
            command = partial(
                wire_query.query_command, self._route.topic, self._key, self._begin_ms, end_ms, page, unique=False
            )
            try:
                answer = await asking.request_with_retry(self._mq, address, command)
            except MessageNotFound:
                return
            records = wire_query.read_records(answer)
            fresh = [record for record in records if record.physical_offset not in seen]
            for record in fresh:
                message = ReceivedMessage.from_record(record, broker)
                if self._key in message.keys:
                    yield message
            if len(records) < page and len(answer.body) + longest < _ANSWER_BYTES:
                return
            oldest_ms = min(record.store_timestamp_ms for record in records)
            seen = {record.physical_offset for record in records if record.store_timestamp_ms == oldest_ms}
            if fresh:
                end_ms = oldest_ms
            elif page < _MAX_PAGE:
                page = min(_MAX_PAGE, 4 * page)  # all messages of the page were stored in the same millisecond
            else:
                end_ms = oldest_ms - 1


def _age(message: ReceivedMessage | None) -> tuple[float, int]:
    """Return the sort key of a message: its store time and physical offset."""
    assert message is not None
    return message.store_timestamp, message.physical_offset


def _window(begin: float | datetime | None, end: float | datetime | None) -> tuple[int, int]:
    """Return the bounds in milliseconds, rounded to whole seconds, both inclusive.

    Raise InvalidInput if one of them is no valid time.
    """
    begin_ms = 0 if begin is None else milliseconds("begin", begin) // 1000 * 1000
    end_ms = FAR_FUTURE_MS if end is None else milliseconds("end", end) // 1000 * 1000 + 999
    return begin_ms, end_ms


async def all_by_unique_key(mq: Connection, topic: str, unique_key: str) -> FoundMessages[ReceivedMessage]:
    """Return a topic's messages with the unique key, newest first, `_COPIES` per broker at most.

    Raise TopicNotFound, or the first error with which a broker answers.
    """
    check_topic(topic)
    arguments.text("unique_key", unique_key)
    route = await mq.routes.readable(topic)
    addresses, away = route.addresses, mq.routes.away(route)
    command = partial(wire_query.query_command, topic, unique_key, 0, FAR_FUTURE_MS, _COPIES, unique=True)
    answers = await asking.request_each(mq, addresses, command)
    silent = {broker for broker, answer in answers.items() if isinstance(answer, BrokerUnavailable)}
    empty = {broker for broker, answer in answers.items() if isinstance(answer, MessageNotFound)}
    answers = {broker: answer for broker, answer in answers.items() if broker not in empty | silent}
    found = [
        ReceivedMessage.from_record(record, broker)
        for broker, answer in asking.require_answers(answers).items()
        for record in wire_query.read_records(answer)
    ]
    found.sort(key=lambda message: (message.store_timestamp, message.physical_offset), reverse=True)
    return FoundMessages([message for message in found if message.unique_key == unique_key], sorted({*away, *silent}))
