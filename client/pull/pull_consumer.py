"""Reading queues at one's own pace: seek, poll, commit."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Final, TypeVar

import pyarrow as pa

from raymq.actors.errors import BrokerUnavailable, OffsetReset, Timeout
from raymq.actors.naming import check_group
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands.fetch import Fetched
from raymq.client import arguments
from raymq.client.client_base import ClientBase, check_connection
from raymq.client.connection import Connection
from raymq.client.message import ReceivedMessage
from raymq.client.pull.engine import CONTROL_SECONDS, Pulling, check_max_messages, refused
from raymq.client.received import received
from raymq.client.requests.direct_fetching import DirectFetching
from raymq.storage.errors import StoreCorrupt
from raymq.storage.records.table import SCHEMA, tables_from_records

_T = TypeVar("_T")
#: Decodes what a fetch brought, and says where the next one begins.
_Decode = Callable[[Fetched, MessageQueue], tuple[_T, int]]
#: More messages than an answer holds.
_ANY_NUMBER: Final = 1 << 24


class PullConsumer(ClientBase):
    """Reads queues that it names itself. Not shared out among members; not thread-safe; a context manager.

    A queue that was not sought starts at its committed offset, else at its minimum. A broker that cannot be reached
    raises BrokerUnavailable; it is never taken for "no offset" or "no message". The group exists from construction.
    Where an event loop runs on the constructing thread it exists from the first call, or the beginning of `async with`.
    Closing it commits nothing.
    """

    KIND = "consumer"

    def __init__(self, mq: Connection, group: str) -> None:
        check_connection(mq)
        self.group = check_group(group)
        super().__init__(mq)
        self._pulling = Pulling(mq, group)
        pulling = self._pulling
        self._direct = DirectFetching(mq, pulling.session, pulling.epochs, pulling.incarnations)
        self._open(self._pulling.create_group)
        mq.adopt(self)

    def close(self, timeout: float = 10.0) -> None:
        """Ask no more. May be called twice."""
        if not self._closed:
            self._opening = None
            self._direct.close()
            self._run(self._pulling.close())
        super().close(timeout)

    def queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues of a topic, sorted; TopicNotFound."""
        return self._run(self._pulling.queues(topic))

    async def aqueues(self, topic: str) -> list[MessageQueue]:
        """`queues` for asyncio code, on any event loop."""
        return await self._arun(self._pulling.queues(topic))

    def offsets(self, queue: MessageQueue) -> tuple[int, int]:
        """The queue's minimum and maximum (the next message's) offset; QueueNotFound."""
        return self._run(self._pulling.offsets(queue))

    async def aoffsets(self, queue: MessageQueue) -> tuple[int, int]:
        """`offsets` for asyncio code, on any event loop."""
        return await self._arun(self._pulling.offsets(queue))

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's offset in the queue, None if it never committed one."""
        return self._run(self._pulling.committed(queue))

    async def acommitted(self, queue: MessageQueue) -> int | None:
        """`committed` for asyncio code, on any event loop."""
        return await self._arun(self._pulling.committed(queue))

    def position(self, queue: MessageQueue) -> int:
        """The offset of the next `poll`."""
        return self._run(self._pulling.position(queue))

    async def aposition(self, queue: MessageQueue) -> int:
        """`position` for asyncio code, on any event loop."""
        return await self._arun(self._pulling.position(queue))

    def seek(self, queue: MessageQueue, offset: int | str) -> None:
        """Go to an offset, to "earliest" or to "latest". Checked by the next poll (OffsetOutOfRange).

        A number is one of the topic that is there at the next poll; an end is one of the topic that is there now, so
        that one that is made anew before the poll is told.
        """
        self._run(self._pulling.seek(queue, offset))

    async def aseek(self, queue: MessageQueue, offset: int | str) -> None:
        """`seek` for asyncio code, on any event loop."""
        await self._arun(self._pulling.seek(queue, offset))

    def seek_to_time(self, queue: MessageQueue, timestamp: float | datetime) -> None:
        """Go to the first message stored at `timestamp` or later, else to the end.

        Args:
            timestamp: seconds since 1970, or a datetime with a time zone; `math.inf` is the end.

        Raises:
            InvalidInput: it is no such time, or more than 100 years ahead (milliseconds, for example).
        """
        self._run(self._pulling.seek_to_time(queue, timestamp))

    async def aseek_to_time(self, queue: MessageQueue, timestamp: float | datetime) -> None:
        """`seek_to_time` for asyncio code, on any event loop."""
        await self._arun(self._pulling.seek_to_time(queue, timestamp))

    def poll(self, queue: MessageQueue, max_messages: int = 32, timeout: float = 5.0) -> list[ReceivedMessage]:
        """Wait for the first message, return what is there, at most `max_messages`; [] at the time-out.

        Raises:
            OffsetOutOfRange: the position is below the minimum or beyond the maximum. Also if the broker's disk has
                lost what was read last, or the topic was deleted and made anew: the queue ended at `max_offset` then,
                and what is there now is new. `seek` says where to go on.
            StoreCorrupt: the message at `.queue_offset` is damaged in the broker's file; what lies before it was
                returned. `seek(queue, error.queue_offset + 1)` passes over it.
            BrokerUnavailable: it could not be reached within the time-out, or did not answer so long after it again (at
                least 2 s, at most 10 s).
        """
        return self._read(queue, max_messages, timeout, _messages) or []

    async def apoll(self, queue: MessageQueue, max_messages: int = 32, timeout: float = 5.0) -> list[ReceivedMessage]:
        """`poll` for asyncio code, on any event loop."""
        return await self._aread(queue, max_messages, timeout, _messages) or []

    def fetch_table(self, queue: MessageQueue, max_messages: int | None = None, timeout: float = 5.0) -> pa.Table:
        """As `poll`, as an Arrow table with the columns of `raymq.storage.records.table.SCHEMA`.

        It has at most `max_messages` rows; None: what one answer of the broker holds, 4 MiB of records. It has fewer
        where bodies that producers compressed become more than 64 MiB together: the next table begins behind them.
        """
        table = self._read(queue, _ANY_NUMBER if max_messages is None else max_messages, timeout, _table)
        return SCHEMA.empty_table() if table is None else table

    async def afetch_table(
        self, queue: MessageQueue, max_messages: int | None = None, timeout: float = 5.0
    ) -> pa.Table:
        """`fetch_table` for asyncio code, on any event loop."""
        table = await self._aread(queue, _ANY_NUMBER if max_messages is None else max_messages, timeout, _table)
        return SCHEMA.empty_table() if table is None else table

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """Everything below `offset` is done. It survives a SIGKILL of the broker when this returns; never goes back.

        Raises:
            OffsetOutOfRange: the broker's log has lost some of it since it was read, or the topic was made anew; see
                `poll`. Nothing was committed.
        """
        self._check_open()
        command = self._pulling.commit_command(queue, offset)
        address = None if self._mq.is_on_loop else self._direct.address(queue)
        try:
            if address is not None and self._mq.channels.request(address, command, CONTROL_SECONDS) is not None:
                return
        except OffsetReset as reset:
            raise refused(offset, reset) from None
        except Timeout:
            raise
        except BrokerUnavailable:
            pass  # the loop asks again for a while: what a commit does it does once
        self._run(self._pulling.commit(queue, offset))

    async def acommit(self, queue: MessageQueue, offset: int) -> None:
        """`commit` for asyncio code, on any event loop."""
        await self._arun(self._pulling.commit(queue, offset))

    def _read(self, queue: MessageQueue, max_messages: int, timeout: float, decode: _Decode[_T]) -> _T | None:
        """What a fetch brings, decoded in this thread while the broker sends what comes next; None at the end.

        `decode` also says where the next fetch begins: the position moves there with the last step, so that who is
        interrupted and gets nothing reads the same again.
        """
        part = self._fetch(queue, max_messages, timeout)
        if part is None:
            return None
        try:
            decoded, following = decode(part, queue)
        except StoreCorrupt:
            self._direct.forget(queue)
            part = self._run(self._pulling.fetch_again(queue, part))
            decoded, following = decode(part, queue)
        self._pulling.go_on_at(queue, following)
        return decoded

    def _fetch(self, queue: MessageQueue, max_messages: int, timeout: float) -> Fetched | None:
        """Over this thread's own socket; on the loop, with its patience, where that does not work."""
        self._check_open()
        check_max_messages(max_messages)
        deadline = time.monotonic() + arguments.duration("timeout", timeout)
        arguments.queue("queue", queue)
        position = self._pulling.known_position(queue)
        if position is None:
            position = self._run(self._pulling.position_within(queue, timeout))
        if self._direct.reaches(queue):
            wait = max(0.0, deadline - time.monotonic())
            try:
                part = self._direct.fetch(queue, position, max_messages, wait)
            except Timeout:
                raise
            except BrokerUnavailable:
                timeout = max(0.0, deadline - time.monotonic())
            else:
                if part is not None:
                    self._pulling.fetched(queue, part)
                return part
        return self._run(self._pulling.fetch(queue, max_messages, timeout))

    async def _aread(self, queue: MessageQueue, max_messages: int, timeout: float, decode: _Decode[_T]) -> _T | None:
        """As `_read`; cancelled, it has moved nothing."""
        part = await self._arun(self._pulling.fetch(queue, max_messages, timeout))
        if part is None:
            return None
        try:
            decoded, following = decode(part, queue)
        except StoreCorrupt:
            part = await self._arun(self._pulling.fetch_again(queue, part))
            decoded, following = decode(part, queue)
        self._pulling.go_on_at(queue, following)
        return decoded


def _messages(part: Fetched, queue: MessageQueue) -> tuple[list[ReceivedMessage], int]:
    """What a fetch brought, and where the next one begins."""
    return received(part, queue), part.next_offset


def _table(part: Fetched, queue: MessageQueue) -> tuple[pa.Table, int]:
    """The same as a table; what would make it too large is for the next one."""
    table = next(tables_from_records(part.records, part.sizes, broker=queue.broker), SCHEMA.empty_table())
    return table, part.next_offset if table.num_rows == len(part.sizes) else int(part.offsets[table.num_rows])
