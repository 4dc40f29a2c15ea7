"""Consuming by listener: messages are brought to a function; what it fails on comes again, and at last rests in the
group's dead-letter queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from raymq.actors.errors import InvalidInput
from raymq.client import arguments
from raymq.client.client_base import ClientBase
from raymq.client.connection import Connection
from raymq.client.consumer_settings import ConsumerSettings, MessageModel
from raymq.client.consuming import Consuming
from raymq.client.listener import Listener, ListenerRunner
from raymq.client.offsets import ConsumeFrom
from raymq.client.subscription import Sql, parse_subscriptions
from raymq.client.trace import Trace


class PushConsumer(ClientBase):
    """A member of a consumer group. A context manager: enters started, leaves shut down.

    Every message that was acknowledged to its producer is delivered to the group at least once. It may come again:
    after a crash, or when queues move between members; a listener should not mind.

    Args:
        mq: the connection to the cluster.
        group: members of one group share the messages; all must subscribe to the same.
        subscriptions: topic to tag expression: "*", "paid", "paid || shipped"; or to `Sql("price > 3")`.
        listener: gets a list of at most `batch_size` messages of one queue, in at most `threads` calls at a time, on
            threads that are not the caller's; may be a coroutine function. It returns `ConsumeResult.SUCCESS`,
            `ConsumeResult.RECONSUME_LATER` or `Retry(level)`, one for all or a list with one per message. What it
            raises, and None, is a failure.
        ordered: one call per queue at a time, in the queue's order, under a lock that its broker keeps; a failure
            repeats the same list after `ordered_retry_interval` seconds (0.01..30), and what follows waits.
        model: CLUSTERING shares out; BROADCASTING gives every member all messages, keeps its progress in the process
            and does not retry.
        consume_from, consume_timestamp: where to start in a queue in which the group never committed.
        max_reconsume_times: retries before a message goes to the dead letters; None = the group's (16), ordered
            without end. What a member sets holds for its group until another sets it anew.
        consume_timeout: seconds after which a call counts as failed, whatever it answers later (not ordered).
        strategy: how queues are shared out, the same in all members: "average", "sticky" or "consistent-hash".
        rate_limit: messages per second of this member; what is above it stays on the broker.
        on_outage: "pause": when nearly every message fails, keep them and try one call at a time until one succeeds,
            instead of sending a whole topic back.
        park_failed_keys: ordered: a failure holds up only the messages of its sharding key (else first key).
        trace: called with each step of each message; see `raymq.client.trace`.

    Raises:
        InvalidInput: a name, an expression or a number breaks its rule.
    """

    KIND = "consumer"

    def __init__(
        self,
        mq: Connection,
        group: str,
        subscriptions: Mapping[str, str | Sql],
        listener: Listener,
        *,
        ordered: bool = False,
        model: MessageModel = MessageModel.CLUSTERING,
        consume_from: ConsumeFrom = ConsumeFrom.FIRST,
        max_reconsume_times: int | None = None,
        threads: int = 20,
        batch_size: int = 1,
        consume_timeout: float = 900.0,
        consume_timestamp: float | None = None,
        strategy: str = "average",
        ordered_retry_interval: float = 1.0,
        rate_limit: float | None = None,
        on_outage: str | None = None,
        park_failed_keys: bool = False,
        trace: Trace | None = None,
    ) -> None:
        self._settings = ConsumerSettings(
            group,
            parse_subscriptions(subscriptions),
            model=model,
            consume_from=consume_from,
            consume_timestamp=consume_timestamp,
            ordered=ordered,
            max_reconsume_times=max_reconsume_times,
            threads=threads,
            batch_size=batch_size,
            consume_timeout=consume_timeout,
            strategy=strategy,
            ordered_retry_interval=ordered_retry_interval,
            rate_limit=rate_limit,
            on_outage=on_outage,
            park_failed_keys=park_failed_keys,
            trace=trace,
        )
        if not callable(listener):
            raise InvalidInput("listener", "a function, or another object that can be called", listener)
        super().__init__(mq)
        self.group = group
        self._listener = listener
        self._runner: ListenerRunner | None = None
        self._consuming: Consuming | None = None
        self._paused = False
        mq.adopt(self)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    async def __aenter__(self) -> Self:
        await self.astart()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.ashutdown()

    def start(self) -> None:
        """Join the group; returns when the brokers know this member and its start positions are fixed.

        Raises:
            InvalidInput: an SQL expression cannot be read.
            TopicNotFound, SubscriptionMismatch, BrokerUnavailable: it did not join; may be tried again.
            ClientClosed: it was shut down.
        """
        self._check_open()
        if self._consuming is None:
            for wanted in self._settings.filters.values():
                wanted.check()
            runner = ListenerRunner(self._listener)
            try:
                self._consuming = self._mq.run(self._begin(runner))
            except BaseException:
                runner.close()
                raise
            self._runner = runner
            if self._paused:
                self.pause()

    async def astart(self) -> None:
        """`start` for asyncio code."""
        await asyncio.to_thread(self.start)

    def pause(self) -> None:
        """Call the listener no more until `resume`; running calls end, the queues stay this member's."""
        self._paused = True
        if self._consuming is not None:
            self._mq.loop.call_soon_threadsafe(self._consuming.delivery.pause)

    def resume(self) -> None:
        """Call the listener again."""
        self._paused = False
        if self._consuming is not None:
            self._mq.loop.call_soon_threadsafe(self._consuming.delivery.resume)

    def shutdown(self, timeout: float = 30.0) -> None:
        """Wait for running listeners, at most `timeout` seconds, commit what they did, and leave the group."""
        arguments.duration("timeout", timeout)
        self._closed = True
        consuming, self._consuming = self._consuming, None
        if consuming is not None:
            self._mq.run(consuming.stop(timeout), timeout + 10.0)
        if self._runner is not None:
            self._runner.close()

    async def ashutdown(self, timeout: float = 30.0) -> None:
        """`shutdown` for asyncio code."""
        await asyncio.to_thread(self.shutdown, timeout)

    def close(self, timeout: float = 10.0) -> None:
        """`shutdown`, as a connection calls it that is closed."""
        self.shutdown(timeout)

    async def _begin(self, runner: ListenerRunner) -> Consuming:
        consuming = Consuming(self._mq, self._settings, runner)
        try:
            await consuming.start()
        except BaseException:
            await consuming.stop(0.0)
            raise
        return consuming
