"""Decide when a leader answers an append: after the disk, or after replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from raymq.actors.broker.core.reading.arrival_notifier import ArrivalNotifier
from raymq.actors.broker.core.reading.long_poll import QueueKey
from raymq.actors.broker.group_commit import GroupCommit
from raymq.actors.broker.handlers.broker_command import Commands
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import Handler
from raymq.actors.wire.sync_callback_future import SyncCallbackFuture
from raymq.storage.histogram import Histogram
from raymq.storage.store import Store

_T = TypeVar("_T")


class ReplicaAcks(Protocol):
    """Acknowledgements by replicas, which alone decide when an append is answered."""

    def answer(self, make: Callable[[SendStatus], _T]) -> SyncCallbackFuture[_T]:
        """Ship what was just written to the log.

        Return a future of `make`'s result for its status.
        """


class Acks(Protocol):
    """What differs between the leader of one copy and of several.

    Attributes:
        is_immediate: an append is answered, and may be delivered, while it is being stored.
        inline: set if replicas alone decide when an append is answered.
        replicate_seconds: the time from an append to its confirmation by replicas; None without replicas.
        epoch, replication_address: of the leadership, for name servers; 0 and "" without replicas.
        drain_seconds: how long the end of the service waits until running requests are answered.
    """

    is_immediate: bool
    inline: ReplicaAcks | None
    replicate_seconds: Histogram | None
    epoch: int
    replication_address: str
    drain_seconds: float

    def start(self, wake: Callable[[Sequence[QueueKey]], None]) -> Callable[[Sequence[QueueKey]], None]:
        """Begin to acknowledge; return the listener of appends.

        `wake` wakes the requests parked on queues once their messages may be read.
        """

    def durable(self) -> Awaitable[SendStatus] | None:
        """Return the wait until all appends are as durable as promised, or None."""

    def answer(self, make: Callable[[SendStatus], Command]) -> Command | asyncio.Future[Command]:
        """Return `make`'s result for the status of the append just made."""

    def guarded(self, commands: Commands) -> Mapping[int, Handler]:
        """Return the commands' handlers, which refuse or delay what this broker may not answer."""

    async def close(self, store: Store) -> None:
        """Close the store, after replicas had a moment to get the rest."""


class LocalAcks:
    """The `Acks` of a group with one copy: its broker's disk alone decides."""

    inline: ReplicaAcks | None = None
    replicate_seconds: Histogram | None = None
    epoch = 0
    replication_address = ""
    drain_seconds = 5.0

    def __init__(self, store: Store) -> None:
        self.is_immediate = store.confirmed.is_immediate
        self._store = store
        self._commits = GroupCommit.of_log(store)

    def start(self, wake: Callable[[Sequence[QueueKey]], None]) -> Callable[[Sequence[QueueKey]], None]:
        """Return the listener of appends; see `Acks`."""
        if self.is_immediate:
            return wake
        arrivals = ArrivalNotifier(self._store, wake, self._commits.request)
        self._commits.on_flushed = arrivals.confirmed
        return arrivals.appended

    def durable(self) -> Awaitable[SendStatus] | None:
        """Return the wait for the disk, or None if no append waits for it."""
        return None if self.is_immediate else self._commits.wait()

    def answer(self, make: Callable[[SendStatus], Command]) -> Command | asyncio.Future[Command]:
        """Return the answer of the append just made; see `Acks`."""
        return make(SendStatus.SEND_OK) if self.is_immediate else asyncio.ensure_future(self._flushed(make))

    async def _flushed(self, make: Callable[[SendStatus], Command]) -> Command:
        return make(await self._commits.wait())

    def guarded(self, commands: Commands) -> Mapping[int, Handler]:
        """Return the handlers as they are: this broker always leads."""
        return {code: command.handler for code, command in commands.items()}

    async def close(self, store: Store) -> None:
        """Close the store."""
        store.close()
