"""Settle leased messages, with one request per broker and turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from raymq.actors.errors import RayMQError
from raymq.actors.protocol import SettleAction, Settlement, SettleResult
from raymq.actors.request_limits import MAX_SETTLED
from raymq.actors.wire.commands.settle_commands import read_settled, settle_command
from raymq.client.connection import Connection
from raymq.client.message import ReceivedMessage
from raymq.client.requests.broker_requests import request_via_topics

_REQUEST_SECONDS: Final = 5.0

_Waiting = tuple[Settlement, asyncio.Future[SettleResult]]


class SettlementBatcher:
    """The settlements of one group. Runs on the connection's event loop.

    The settlements of a broker reach it in the order of the `settle` calls, unless one of its requests has failed.
    """

    def __init__(self, mq: Connection, group: str, topics: Sequence[str]) -> None:
        """Initialize the batcher.

        Args:
            topics: the topics by whose routes the brokers are found.
        """
        self._mq = mq
        self._group = group
        self._topics = topics
        self._waiting: defaultdict[str, list[_Waiting]] = defaultdict(list)
        self._requests: set[asyncio.Task[None]] = set()

    def settle(
        self, message: ReceivedMessage, action: SettleAction, argument: int = 0, reason: str = ""
    ) -> asyncio.Future[SettleResult]:
        """Request one settlement once, and return a future of its outcome.

        If the request fails, the future has the request's error.
        """
        assert message.receipt is not None
        queue, handle = message.queue, message.receipt.handle
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[SettleResult] = loop.create_future()
        settlement = Settlement(
            queue.topic, queue.queue_id, message.queue_offset, handle.pop_time_ms, action, argument, reason
        )
        if not self._waiting:
            loop.call_soon(self._send)
        self._waiting[queue.broker].append((settlement, outcome))
        return outcome

    async def idle(self) -> None:
        """Wait until every request has ended."""
        while self._waiting or self._requests:
            if self._requests:
                await asyncio.wait(self._requests)
            await asyncio.sleep(0)

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, defaultdict(list)
        for broker, entries in waiting.items():
            for begin in range(0, len(entries), MAX_SETTLED):
                part = entries[begin : begin + MAX_SETTLED]
                request = asyncio.get_running_loop().create_task(self._ask(broker, part))
                self._requests.add(request)
                request.add_done_callback(self._requests.discard)

    async def _ask(self, broker: str, entries: list[_Waiting]) -> None:
        command = settle_command(self._group, [settlement for settlement, _ in entries])
        try:
            answer = await request_via_topics(self._mq, self._topics, broker, command, _REQUEST_SECONDS)
            outcomes = read_settled(answer)
        except RayMQError as error:
            for _, outcome in entries:
                if not outcome.done():
                    outcome.set_exception(error)
                    outcome.exception()  # the caller may be gone, and asyncio logs errors that are never read
            return
        for (_, outcome), result in zip(entries, outcomes, strict=True):
            if not outcome.done():
                outcome.set_result(result)
