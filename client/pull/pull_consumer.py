"""Read chosen queues with seek, poll and commit."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Final, TypeVar

import pyarrow as pa

from raymq.actors.errors import BrokerUnavailable, OffsetReset, Timeout
from raymq.actors.naming import check_group
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands.fetch_commands import Fetched
from raymq.client import arguments
from raymq.client.client_base import check_connection
from raymq.client.connection import Connection
from raymq.client.message import ReceivedMessage
from raymq.client.message_decoder import decode_messages
from raymq.client.pull.pull_consumer_engine import CONTROL_SECONDS, PullConsumerEngine, check_max_messages, refused
from raymq.client.receiving_client import ReceivingClient
from raymq.storage.errors import StoreCorrupt
from raymq.storage.records.record_table import SCHEMA, tables_from_records

_T = TypeVar("_T")
#: A function that decodes a fetch's records and returns them with the offset of the next fetch.
_Decode = Callable[[Fetched, MessageQueue], tuple[_T, int]]
#: A limit above the number of messages that a response can hold.
_ANY_NUMBER: Final = 1 << 24


class PullConsumer(ReceivingClient):
    """A consumer that reads the queues that the caller names.

    Queues are not assigned to members. Not thread-safe. A context manager. A queue without a `seek` starts at its
    committed offset, or at its minimum offset if there is none. If a broker cannot be reached, BrokerUnavailable is
    raised; an unreachable broker is never reported as "no offset" or "no message". The constructor creates the group.
    If an event loop runs on the constructing thread, the first call or the beginning of `async with` creates it.
    `close` commits nothing.
    """

    KIND = "consumer"

    def __init__(self, mq: Connection, group: str) -> None:
        check_connection(mq)
        self.group = check_group(group)
        super().__init__(mq)
        self._pull_engine = PullConsumerEngine(mq, group)
        self._fetcher = self._pull_engine.fetcher
        self._open(self._pull_engine.create_group)
        mq.adopt(self)

    def close(self, timeout: float = 10.0) -> None:
        """Close the consumer. May be called twice."""
        if not self._closed:
            self._opening = None
            self._fetcher.close()
        super().close(timeout)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic, sorted.

        Raise TopicNotFound if the topic does not exist.
        """
        return self._run(self._pull_engine.queues(topic))

    async def aqueues(self, topic: str) -> list[MessageQueue]:
        """Do `queues` for asyncio code, on any event loop."""
        return await self._arun(self._pull_engine.queues(topic))

    def offsets(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the queue's minimum offset and its maximum offset, that of the next message.

        Raise QueueNotFound if the queue does not exist.
        """
        return self._run(self._pull_engine.offsets(queue))

    async def aoffsets(self, queue: MessageQueue) -> tuple[int, int]:
        """Do `offsets` for asyncio code, on any event loop."""
        return await self._arun(self._pull_engine.offsets(queue))

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of the queue, or None if there is none."""
        return self._run(self._pull_engine.committed(queue))

    async def acommitted(self, queue: MessageQueue) -> int | None:
        """Do `committed` for asyncio code, on any event loop."""
        return await self._arun(self._pull_engine.committed(queue))

    def position(self, queue: MessageQueue) -> int:
        """Return the offset at which the next `poll` reads."""
        return self._run(self._pull_engine.position(queue))

    async def aposition(self, queue: MessageQueue) -> int:
        """Do `position` for asyncio code, on any event loop."""
        return await self._arun(self._pull_engine.position(queue))

    def seek(self, queue: MessageQueue, offset: int | str) -> None:
        """Set the position to an offset, to "earliest" or to "latest".

        The next `poll` checks the position and may raise OffsetOutOfRange. A number applies to the topic that exists at
        the next poll. "earliest" and "latest" apply to the topic that exists now: if it is deleted and recreated before
        the poll, the poll raises OffsetOutOfRange.
        """
        self._run(self._pull_engine.seek(queue, offset))

    async def aseek(self, queue: MessageQueue, offset: int | str) -> None:
        """Do `seek` for asyncio code, on any event loop."""
        await self._arun(self._pull_engine.seek(queue, offset))

    def seek_to_time(self, queue: MessageQueue, timestamp: float | datetime) -> None:
        """Set the position to the first message stored at or after `timestamp`.

        If there is none, set it to the end.

        Args:
            timestamp: seconds since 1970, or a datetime with a time zone; `math.inf` is the end.

        Raises:
            InvalidInput: the timestamp is not valid, or more than 100 years ahead (milliseconds, for example).
        """
        self._run(self._pull_engine.seek_to_time(queue, timestamp))

    async def aseek_to_time(self, queue: MessageQueue, timestamp: float | datetime) -> None:
        """Do `seek_to_time` for asyncio code, on any event loop."""
        await self._arun(self._pull_engine.seek_to_time(queue, timestamp))

    def poll(self, queue: MessageQueue, max_messages: int = 32, timeout: float = 5.0) -> list[ReceivedMessage]:
        """Wait for the first message and return the available ones, at most `max_messages`.

        Return [] if there is none within `timeout` seconds.

        Raises:
            OffsetOutOfRange: the position is below the minimum or above the maximum offset. Also if the broker's disk
                lost messages that were read last, or the topic was deleted and recreated: `max_offset` is then the end
                of the queue before that, and all messages that are in it now are new. `seek` sets where to go on.
            StoreCorrupt: the message at `.queue_offset` is damaged in the broker's file. The messages before it were
                returned. `seek(queue, error.queue_offset + 1)` skips it.
            BrokerUnavailable: the broker could not be reached within the time-out, or did not answer within the same
                time after it (at least 2 s, at most 10 s).
        """
        began_ns = time.time_ns()
        return self._traced(self._read(queue, max_messages, timeout, _messages) or [], began_ns)

    async def apoll(self, queue: MessageQueue, max_messages: int = 32, timeout: float = 5.0) -> list[ReceivedMessage]:
        """Do `poll` for asyncio code, on any event loop."""
        began_ns = time.time_ns()
        return self._traced(await self._aread(queue, max_messages, timeout, _messages) or [], began_ns)

    def fetch_table(self, queue: MessageQueue, max_messages: int | None = None, timeout: float = 5.0) -> pa.Table:
        """Do `poll`, but return an Arrow table.

        Its columns are those of `raymq.storage.records.record_table.SCHEMA`. It has at most `max_messages` rows. None:
        as many as one response of the broker holds, 4 MiB of records. It has fewer rows if bodies that producers
        compressed would exceed 64 MiB in total after decompression. The next table begins after its last row.
        """
        table = self._read(queue, _ANY_NUMBER if max_messages is None else max_messages, timeout, _table)
        return SCHEMA.empty_table() if table is None else table

    async def afetch_table(
        self, queue: MessageQueue, max_messages: int | None = None, timeout: float = 5.0
    ) -> pa.Table:
        """Do `fetch_table` for asyncio code, on any event loop."""
        table = await self._aread(queue, _ANY_NUMBER if max_messages is None else max_messages, timeout, _table)
        return SCHEMA.empty_table() if table is None else table

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit that all messages below `offset` are consumed.

        When this returns, the commit survives a SIGKILL of the broker. The committed offset never decreases.

        Raises:
            OffsetOutOfRange: the broker's log lost some of these messages after they were read, or the topic was
                recreated; see `poll`. Nothing was committed.
        """
        self._check_open()
        command = self._pull_engine.commit_command(queue, offset)
        address = None if self._mq.is_on_loop else self._fetcher.address(queue)
        try:
            if address is not None and self._mq.channels.request(address, command, CONTROL_SECONDS) is not None:
                return
        except OffsetReset as reset:
            raise refused(offset, reset) from None
        except Timeout:
            raise
        except BrokerUnavailable:
            pass  # the loop retries for a while: a commit is idempotent
        self._run(self._pull_engine.commit(queue, offset))

    async def acommit(self, queue: MessageQueue, offset: int) -> None:
        """Do `commit` for asyncio code, on any event loop."""
        await self._arun(self._pull_engine.commit(queue, offset))

    def _read(self, queue: MessageQueue, max_messages: int, timeout: float, decode: _Decode[_T]) -> _T | None:
        """Fetch and decode messages on the caller's thread. Return None at the time-out.

        The broker sends the next messages meanwhile. `decode` also returns the offset of the next fetch. The position
        moves to it in the last step, so a caller that is interrupted and gets no messages reads the same messages
        again.
        """
        part = self._fetch(queue, max_messages, timeout)
        if part is None:
            return None
        try:
            decoded, following = decode(part, queue)
        except StoreCorrupt:
            part = self._run(self._pull_engine.fetch_again(queue, part))
            decoded, following = decode(part, queue)
        self._pull_engine.advance_to(queue, following)
        return decoded

    def _fetch(self, queue: MessageQueue, max_messages: int, timeout: float) -> Fetched | None:
        """Fetch over this thread's own socket, or on the loop, with retries, if that fails."""
        self._check_open()
        check_max_messages(max_messages)
        deadline = time.monotonic() + arguments.duration("timeout", timeout)
        arguments.queue("queue", queue)
        position = self._pull_engine.known_position(queue)
        if position is None:
            position = self._run(self._pull_engine.position_within(queue, timeout))
        if self._fetcher.reaches(queue):
            wait = max(0.0, deadline - time.monotonic())
            try:
                part = self._fetcher.fetch_blocking(queue, position, max_messages, wait)
            except Timeout:
                raise
            except BrokerUnavailable:
                timeout = max(0.0, deadline - time.monotonic())
            else:
                if part is not None:
                    self._pull_engine.check(queue, part)
                return part
        return self._run(self._pull_engine.fetch(queue, max_messages, timeout))

    async def _aread(self, queue: MessageQueue, max_messages: int, timeout: float, decode: _Decode[_T]) -> _T | None:
        """Do `_read` for asyncio code. If it is cancelled, the position has not moved."""
        part = await self._arun(self._pull_engine.fetch(queue, max_messages, timeout))
        if part is None:
            return None
        try:
            decoded, following = decode(part, queue)
        except StoreCorrupt:
            part = await self._arun(self._pull_engine.fetch_again(queue, part))
            decoded, following = decode(part, queue)
        self._pull_engine.advance_to(queue, following)
        return decoded


def _messages(part: Fetched, queue: MessageQueue) -> tuple[list[ReceivedMessage], int]:
    """Return the messages of a fetch and the offset of the next fetch."""
    return decode_messages(part, queue), part.next_offset


def _table(part: Fetched, queue: MessageQueue) -> tuple[pa.Table, int]:
    """Return a fetch as a table, and the offset of the next fetch.

    Rows that would make the table too large are left to the next fetch.
    """
    table = next(tables_from_records(part.records, part.sizes, broker=queue.broker), SCHEMA.empty_table())
    return table, part.next_offset if table.num_rows == len(part.sizes) else int(part.offsets[table.num_rows])
