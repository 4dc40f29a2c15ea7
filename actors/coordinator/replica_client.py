"""The coordinator's requests to replicas: all replicas of a group at once, with a time-out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from raymq.actors.broker.replication.election import FencedState
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.actors.errors import RayMQError
from raymq.actors.keeper.group_state import ReplicaRecord
from raymq.actors.wire.commands.replication_commands import (
    FenceReply,
    ReplicaStatus,
    fence_command,
    read_fence_reply,
    read_replica_status,
    replica_status_command,
)
from raymq.actors.wire.frame import Command
from raymq.actors.wire.reconnecting_channel import ReconnectingChannel
from raymq.actors.wire.tls import ReloadingContext

STATUS_SECONDS: Final = 0.4
#: A fenced replica saves its epoch and reads its log's end from disk.
SEAL_SECONDS: Final = 0.6
#: With more connections than this, the least recently used ones are closed.
_MAX_CHANNELS: Final = 1_000

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class ReplicaClient:
    """A client with one connection per replica.

    Made, used and closed on one event loop.
    """

    def __init__(self, tls: ReloadingContext | None = None) -> None:
        self._tls = tls
        self._channels: dict[str, ReconnectingChannel] = {}

    async def status(
        self, replicas: Mapping[int, ReplicaRecord], seconds: float = STATUS_SECONDS
    ) -> dict[int, ReplicaStatus]:
        """Return the status of the replicas that answer in time."""
        return await self._request(replicas, replica_status_command, read_replica_status, seconds)

    async def fence(
        self, replicas: Mapping[int, ReplicaRecord], epoch: int, seconds: float = SEAL_SECONDS
    ) -> dict[int, FencedState]:
        """Fence replicas to `epoch`; return the answers that arrive in time.

        A fenced replica refuses every master of an earlier epoch. The answer has the end of its log.
        """
        fenced = await self._request(replicas, lambda: fence_command(epoch), read_fence_reply, seconds)
        return {number: fenced_state(each) for number, each in fenced.items()}

    async def fence_and_status(
        self, replicas: Mapping[int, ReplicaRecord], epoch: int, seconds: float = SEAL_SECONDS
    ) -> tuple[dict[int, FencedState], dict[int, ReplicaStatus]]:
        """Fence replicas, and return also the status of those that answer.

        A replica that is fenced to a later epoch refuses the call, but returns its status.
        """
        return await asyncio.gather(self.fence(replicas, epoch, seconds), self.status(replicas))

    async def close(self) -> None:
        """Close all connections."""
        for channel in self._channels.values():
            channel.close()
        await asyncio.sleep(0)

    async def _request(
        self,
        replicas: Mapping[int, ReplicaRecord],
        command: Callable[[], Command],
        read: Callable[[Command], _T],
        seconds: float,
    ) -> dict[int, _T]:
        async def one(record: ReplicaRecord) -> _T | None:
            try:
                return read(await self._channel(record.address).request(command(), seconds))
            except RayMQError as error:
                _log.debug("no answer from the replica at %s: %s", record.address, error)
            except Exception:  # noqa: BLE001 - after any error, the other replicas' answers count
                _log.exception("a request to the replica at %s failed", record.address)
            return None

        requests: list[Awaitable[_T | None]] = [one(record) for record in replicas.values()]
        answers = await asyncio.gather(*requests)
        return {number: each for number, each in zip(replicas, answers, strict=True) if each is not None}

    def _channel(self, address: str) -> ReconnectingChannel:
        channel = self._channels.pop(address, None) or ReconnectingChannel(address, self._tls, waits_for_server=False)
        self._channels[address] = channel  # at the end: most recently used
        if len(self._channels) > _MAX_CHANNELS:
            self._channels.pop(next(iter(self._channels))).close()
        return channel


def fenced_state(reply: FenceReply) -> FencedState:
    """Convert a reply from the wire to the form that elections use."""
    return FencedState(
        reply.replica,
        reply.identity,
        reply.nonce,
        reply.fenced,
        reply.epoch,
        StreamPosition(*reply.end),
        tail_lost=reply.tail_lost,
        healthy=reply.healthy,
        priority=reply.priority,
        reaches_keepers=reply.reaches_keepers,
    )
