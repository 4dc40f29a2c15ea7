"""Reading queues at one's own pace: seek, poll, commit."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Coroutine
from types import TracebackType
from typing import Self, TypeVar

import pyarrow as pa

from raymq.actors.core.fetching import Wanted
from raymq.actors.errors import BrokerUnavailable, ClientClosed, InvalidInput, MessageNotFound
from raymq.actors.naming import check_group
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire import admin as wire_admin
from raymq.actors.wire import group as wire_group
from raymq.actors.wire import offset as wire_offset
from raymq.actors.wire import query as wire_query
from raymq.actors.wire.fetch import Fetched
from raymq.actors.wire.frame import Command
from raymq.client.connection import Connection
from raymq.client.fetching import CHUNK_BYTES, address_of, fetch, patiently
from raymq.client.message import ReceivedMessage
from raymq.client.received import received
from raymq.storage.record_table import SCHEMA, table_from_records

_CONTROL_SECONDS = 5.0
_T = TypeVar("_T")


class PullConsumer:
    """Reads queues that it names itself. Not shared out among members; not thread-safe; a context manager.

    A queue that was not sought starts at its committed offset, else at its minimum. A broker that cannot be reached
    raises BrokerUnavailable; it is never taken for "no offset" or "no message". The group exists from construction.
    """

    def __init__(self, mq: Connection, group: str) -> None:
        self.group = check_group(group)
        self._mq = mq
        self._positions: dict[MessageQueue, int] = {}
        self._session = f"pull-{uuid.uuid4().hex}"
        self._closed = False
        self._run(self._create_group())
        mq.adopt(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues of a topic, sorted; TopicNotFound."""
        return self._run(self._mq.routes.get(topic, fresh=True)).readable()

    def offsets(self, queue: MessageQueue) -> tuple[int, int]:
        """The queue's minimum and maximum (the next message's) offset."""
        answer = self._control(queue, wire_admin.topic_stats_command(queue.topic))
        values = wire_admin.read_queue_table(answer)[queue]
        return values["minOffset"], values["maxOffset"]

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's offset in the queue, None if it never committed one."""
        try:
            answer = self._control(queue, wire_offset.query_offset_command(self.group, queue.topic, queue.queue_id))
        except MessageNotFound:
            return None
        return int(answer.fields["offset"])

    def position(self, queue: MessageQueue) -> int:
        """The offset of the next `poll`."""
        if queue not in self._positions:
            committed = self.committed(queue)
            self._positions[queue] = self.offsets(queue)[0] if committed is None else committed
        return self._positions[queue]

    def seek(self, queue: MessageQueue, offset: int | str) -> None:
        """Go to an offset, to "earliest" or to "latest". Checked by the next poll (OffsetOutOfRange)."""
        if isinstance(offset, str):
            if offset not in ("earliest", "latest"):
                raise InvalidInput("offset", 'a number, "earliest" or "latest"', offset)
            offset = self.offsets(queue)[offset == "latest"]
        if offset < 0:
            raise InvalidInput("offset", "at least 0", offset)
        self._positions[queue] = offset

    def seek_to_time(self, queue: MessageQueue, timestamp: float) -> None:
        """Go to the first message that was stored at or after `timestamp` (seconds), else to the end."""
        command = wire_query.time_command(queue.topic, queue.queue_id, int(timestamp * 1000))
        self._positions[queue] = int(self._control(queue, command).fields["offset"])

    def poll(self, queue: MessageQueue, max_messages: int = 32, timeout: float = 5.0) -> list[ReceivedMessage]:
        """Wait for the first message, return what is there, at most `max_messages`; [] at the time-out.

        Raises:
            OffsetOutOfRange: the position is below the minimum or beyond the maximum.
            BrokerUnavailable: it could not be reached within the time-out.
        """
        part = self._fetch(queue, max_messages, timeout)
        return [] if part is None else received(part, queue)

    def fetch_table(self, queue: MessageQueue, max_messages: int = 1000, timeout: float = 5.0) -> pa.Table:
        """As `poll`, as an Arrow table with the columns of `raymq.storage.record_table.SCHEMA`."""
        part = self._fetch(queue, max_messages, timeout)
        if part is None:
            return SCHEMA.empty_table()
        return table_from_records(part.records, part.sizes, broker=queue.broker, check_crc=False)

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """Everything below `offset` is done. It survives a SIGKILL of the broker when this returns; never goes back."""
        command = wire_offset.update_offset_command(
            self.group, queue.topic, queue.queue_id, offset, overrules_reset=True
        )
        self._control(queue, command)

    def close(self, timeout: float = 10.0) -> None:  # noqa: ARG002 - every client's close has it
        """Read no more. Commits nothing."""
        self._closed = True

    async def _create_group(self) -> None:
        """Make the group on every broker that can be reached; the others make it with its first commit."""
        for address in (await self._mq.routes.cluster()).masters.values():
            with contextlib.suppress(BrokerUnavailable):
                command = wire_group.create_group_command(self.group)
                await self._mq.pool.request(address, command, _CONTROL_SECONDS)

    def _fetch(self, queue: MessageQueue, max_messages: int, timeout: float) -> Fetched | None:
        if max_messages < 1:
            raise InvalidInput("max_messages", "at least 1", max_messages)
        wanted = [Wanted(queue.topic, queue.queue_id, self.position(queue))]
        deadline = time.monotonic() + timeout

        async def once() -> list[Fetched]:
            left = max(0.0, deadline - time.monotonic())
            return await fetch(self._mq, queue.broker, self._session, wanted, max_messages, CHUNK_BYTES, left)

        parts = self._run(patiently(once, timeout))
        if not parts:
            return None
        if parts[0].error is not None:
            raise parts[0].error
        self._positions[queue] = parts[0].next_offset
        return parts[0]

    def _control(self, queue: MessageQueue, command: Command) -> Command:
        async def ask() -> Command:
            address = await address_of(self._mq, queue.topic, queue.broker)
            return await self._mq.pool.request(address, command, _CONTROL_SECONDS)

        return self._run(patiently(ask, _CONTROL_SECONDS))

    def _run(self, coroutine: Coroutine[None, None, _T]) -> _T:
        if self._closed:
            coroutine.close()
            raise ClientClosed("the consumer is closed")
        return self._mq.run(coroutine)
