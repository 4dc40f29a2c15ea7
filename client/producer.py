"""Sending messages: synchronously, as futures, in asyncio, one-way, in batches and as Arrow tables."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt

from raymq.actors.core.recall_handle import RecallHandle
from raymq.actors.errors import ClientClosed, InvalidInput, RayMQError
from raymq.actors.naming import TIMER_TOPIC, check_group, check_sendable
from raymq.actors.protocol import MessageQueue, RecallStatus
from raymq.actors.sending import SendOptions, Sent, make_sender
from raymq.client.connection import Connection
from raymq.client.message import Message
from raymq.client.recalling import handle_of, recall
from raymq.client.results import SendResult, TableResult
from raymq.client.unique_key import process_unique_keys
from raymq.storage import message_id
from raymq.storage.record import pack_host
from raymq.storage.record_table import records_from_table

if TYPE_CHECKING:
    import pyarrow as pa

#: A batch is cut into parts of at most this many bytes of records; each part is stored whole or not at all.
MAX_PART_BYTES = 4 * 1024 * 1024
#: What a frame may carry of one message: the largest body and its header and properties.
_TABLE_PART_ROWS = 8_192


class _Sends(Protocol):
    """Sends records: `raymq.actors.sending.Sender` here, or the shared actor elsewhere."""

    async def send(
        self, topic: str, records: bytearray, sizes: npt.NDArray[np.int32], options: SendOptions
    ) -> Sent: ...


class Producer:
    """Sends messages. Thread-safe; usable at once; a context manager.

    A call that returns has its message in a broker's log (see `SendStatus`). One that raises `NotStored` has not. One
    that raises `OutcomeUnknown` may have: sending the same message again may store it twice.

    Args:
        mq: the connection to the cluster.
        group: names the application; shared producers are one per group.
        timeout: the one budget of all tries of a send, seconds.
        retries: further tries after the first, each preferably on another broker.
        isolation: "latency" leaves out brokers that were slow or failed, for a while that grows with the latency; None
            does not.
        async_retry: where `send_async` tries again: on the "same" broker or on "another".
        shared: send through the group's producer actor, which keeps routes and connections for many short tasks.

    Raises:
        InvalidInput: a name or number breaks its rule, or `shared` without Ray.
    """

    def __init__(
        self,
        mq: Connection,
        group: str,
        *,
        timeout: float = 3.0,
        retries: int = 2,
        isolation: Literal["latency"] | None = "latency",
        async_retry: Literal["same", "another"] = "same",
        shared: bool = False,
    ) -> None:
        self.group = check_group(group)
        if not timeout > 0:
            raise InvalidInput("timeout", "more than 0 seconds", timeout)
        if not isinstance(retries, int) or retries < 0:
            raise InvalidInput("retries", "a whole number, at least 0", retries)
        if isolation not in ("latency", None):
            raise InvalidInput("isolation", '"latency" or None', isolation)
        if async_retry not in ("same", "another"):
            raise InvalidInput("async_retry", '"same" or "another"', async_retry)
        self._mq = mq
        self._timeout = timeout
        self._retries = retries
        self._same_broker = async_retry == "same"
        self._closed = False
        self._sends: _Sends = make_sender(mq.pool, mq.routes, isolation)
        if shared:
            from raymq.client.shared_producer import SharedSends

            self._sends = SharedSends(mq, group, isolation)
        mq.adopt(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> SendResult:
        """Send one message and wait for its place.

        Args:
            queue, sharding_key: fix the queue; every try goes there, and order of successes is order of delivery.
            timeout, retries: instead of the producer's own.

        Raises:
            NotStored, OutcomeUnknown: `.attempts` lists every try.
            InvalidInput, TopicNotFound, QueueNotFound, PermissionDenied, ClientClosed: nothing was stored.
        """
        return self._mq.run(
            self.asend(message, queue=queue, sharding_key=sharding_key, timeout=timeout, retries=retries)
        )

    async def asend(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> SendResult:
        """`send` for asyncio code, on any event loop."""
        options = self._options(queue, sharding_key, timeout, retries, message.is_delayed)
        return (await self._on_own_loop([message], options))[0]

    def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> Future[SendResult]:
        """Send one message; the future resolves with what `send` returns or raises."""
        options = self._options(
            queue, sharding_key, timeout, retries, message.is_delayed, same_broker=self._same_broker
        )
        return self._mq.submit(self._send_one(message, options))

    def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, sharding_key: str | None = None
    ) -> None:
        """Send one message without waiting for an answer: one try, and nobody says whether it arrived."""
        options = self._options(queue, sharding_key, None, 0, message.is_delayed)
        self._mq.submit(self._forget(message, options))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic, in parts of at most 4 MiB; each part goes to one queue, whole or not at all.

        The results are in the messages' order. If a part fails its error is raised, and earlier parts stay stored.

        Raises:
            InvalidInput: no message, several topics, or a delayed one among them.
            As `send` besides.
        """
        return self._mq.run(
            self.asend_batch(messages, queue=queue, sharding_key=sharding_key, timeout=timeout, retries=retries)
        )

    async def asend_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> list[SendResult]:
        """`send_batch` for asyncio code, on any event loop."""
        topics = {message.topic for message in messages}
        if len(topics) != 1:
            raise InvalidInput("messages", "at least one, all of one topic", sorted(topics))
        if any(message.is_delayed for message in messages):
            raise InvalidInput("messages", "no delayed message in a batch", "delay_level or deliver_at")
        options = self._options(queue, sharding_key, timeout, retries, delayed=False)
        return await self._on_own_loop(messages, options)

    def send_table(
        self,
        topic: str,
        table: pa.Table,
        body: str,
        keys: str | None = None,
        tags: str | None = None,
        properties: str | None = None,
        *,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> TableResult:
        """Send every row of an Arrow table as a message, without a Python step per row.

        Args:
            body: column of the bodies (binary, string, or struct: msgpack).
            keys, tags, properties: columns of the keys, the tag and the user's properties (map<string, string>).

        Raises:
            InvalidInput: a column is missing or a row breaks a limit; parts sent before it stay stored.
            As `send` besides.
        """
        check_sendable(topic)
        parts = []
        options = self._options(queue, None, timeout, None, delayed=False)
        for start in range(0, table.num_rows, _TABLE_PART_ROWS):
            records, sizes = records_from_table(
                table.slice(start, _TABLE_PART_ROWS),
                topic=topic,
                queue_id=0,
                body=body,
                keys=keys,
                tags=tags,
                properties=properties,
                unique_keys=process_unique_keys(),
            )
            for first, last in _cut(sizes):
                low, high = int(sizes[:first].sum(dtype=np.int64)), int(sizes[:last].sum(dtype=np.int64))
                part = bytearray(records[low:high])
                sent = self._mq.run(self._sends.send(topic, part, sizes[first:last], options))
                parts.append((sent.queue, int(sent.placed.queue_offsets[0]), last - first))
        return TableResult(table.num_rows, parts)

    def recall(self, sent: SendResult | str, *, timeout: float | None = None) -> RecallStatus:
        """Withdraw a message that waits for its `deliver_at`, by its result or its `recall_handle`.

        Returns:
            WITHDRAWN: it will never be delivered; asked again: the same. DELIVERED: it was, already. UNKNOWN: the
            broker does not know it, or not any more.

        Raises:
            NotRecallable: the message had no `deliver_at`, or one that had passed.
            InvalidInput: no handle. BrokerUnavailable: no answer; ask again. ClientClosed.
        """
        return self._mq.run(self.arecall(sent, timeout=timeout))

    async def arecall(self, sent: SendResult | str, *, timeout: float | None = None) -> RecallStatus:
        """`recall` for asyncio code, on any event loop."""
        if self._closed:
            raise ClientClosed("the producer is closed")
        work = recall(self._mq, handle_of(sent), self._timeout if timeout is None else timeout)
        if asyncio.get_running_loop() is self._mq.loop:
            return await work
        return await asyncio.wrap_future(self._mq.submit(work))

    def close(self, timeout: float = 10.0) -> None:  # noqa: ARG002 - every client's close has it
        """Send no more. What `send_async` has under way goes on until its connection closes."""
        self._closed = True

    def _options(
        self,
        queue: MessageQueue | None,
        sharding_key: str | None,
        timeout: float | None,
        retries: int | None,
        delayed: bool,
        *,
        same_broker: bool = False,
    ) -> SendOptions:
        if self._closed:
            raise ClientClosed("the producer is closed")
        if queue is not None and sharding_key is not None:
            raise InvalidInput("sharding_key", "not together with queue", sharding_key)
        return SendOptions(
            self._timeout if timeout is None else timeout,
            self._retries if retries is None else retries,
            queue,
            sharding_key,
            same_broker,
            delayed,
        )

    async def _on_own_loop(self, messages: Sequence[Message], options: SendOptions) -> list[SendResult]:
        """Run on the connection's loop, whatever loop the caller is on."""
        if asyncio.get_running_loop() is self._mq.loop:
            return await self._send_all(messages, options)
        return await asyncio.wrap_future(self._mq.submit(self._send_all(messages, options)))

    async def _send_one(self, message: Message, options: SendOptions) -> SendResult:
        return (await self._send_all([message], options))[0]

    async def _send_all(self, messages: Sequence[Message], options: SendOptions) -> list[SendResult]:
        now_ms = time.time_ns() // 1_000_000
        born_host = pack_host(self._mq.pool.local_host, 0)
        encoded = [message.encode(now_ms, born_host) for message in messages]
        sizes = np.fromiter(map(len, encoded), np.int32, len(encoded))
        results = []
        for first, last in _cut(sizes):
            records = bytearray().join(encoded[first:last])
            sent = await self._sends.send(messages[0].topic, records, sizes[first:last], options)
            results += _results(messages[first:last], sent)
        return results

    async def _forget(self, message: Message, options: SendOptions) -> None:
        try:
            await self._send_one(message, options)
        except RayMQError:
            return


def _cut(sizes: npt.NDArray[np.int32]) -> Iterator[tuple[int, int]]:
    """Ranges of records of at most `MAX_PART_BYTES`; a single larger record is a part of its own."""
    ends = np.cumsum(sizes, dtype=np.int64)
    first = 0
    while first < len(sizes):
        begin = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, begin + MAX_PART_BYTES, side="right")))
        yield first, last
        first = last


def _results(messages: Sequence[Message], sent: Sent) -> list[SendResult]:
    host, _, port = sent.address.rpartition(":")
    placed = sent.placed
    return [
        SendResult(
            sent.status,
            message_id.encode(host, int(port), physical),
            message.unique_key,
            MessageQueue(placed.topic, sent.queue.broker, queue_id),
            offset,
            _recall_handle(message, sent),
        )
        for message, queue_id, offset, physical in zip(
            messages,
            placed.queue_ids.tolist(),
            placed.queue_offsets.tolist(),
            placed.physical_offsets.tolist(),
            strict=True,
        )
    ]


def _recall_handle(message: Message, sent: Sent) -> str | None:
    """None unless the message waits for a time of its own."""
    if message.due_ms is None or sent.placed.topic != TIMER_TOPIC:
        return None
    return RecallHandle(message.topic, sent.queue.broker, message.due_ms, message.unique_key).encode()
