"""The coordinator's questions to replicas: all of a group at once, each within its time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from raymq.actors.broker.replication.election import SealedState
from raymq.actors.broker.replication.positions import StreamPosition
from raymq.actors.errors import RayMQError
from raymq.actors.keeper.group_state import ReplicaRecord
from raymq.actors.wire.commands.replication import (
    ReplicaStatus,
    Sealed,
    read_replica_status,
    read_sealed,
    replica_status_command,
    seal_command,
)
from raymq.actors.wire.frame import Command
from raymq.actors.wire.prompt_channel import PromptChannel
from raymq.actors.wire.tls import RenewedContext

STATUS_SECONDS: Final = 0.4
#: A replica writes down that it is sealed, and looks at its disk.
SEAL_SECONDS: Final = 0.6
#: Of more connections those that were not used for the longest time are closed.
_MOST_CHANNELS: Final = 1_000

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class ReplicaQuestions:
    """Over one connection for each replica. Made, used and closed on one event loop."""

    def __init__(self, tls: RenewedContext | None = None) -> None:
        self._tls = tls
        self._channels: dict[str, PromptChannel] = {}

    async def status(
        self, replicas: Mapping[int, ReplicaRecord], seconds: float = STATUS_SECONDS
    ) -> dict[int, ReplicaStatus]:
        """How those do that answer in time."""
        return await self._ask(replicas, replica_status_command, read_replica_status, seconds)

    async def seal(
        self, replicas: Mapping[int, ReplicaRecord], epoch: int, seconds: float = SEAL_SECONDS
    ) -> dict[int, SealedState]:
        """Have them refuse every master before `epoch`; what those have that answer in time."""
        sealed = await self._ask(replicas, lambda: seal_command(epoch), read_sealed, seconds)
        return {number: sealed_state(each) for number, each in sealed.items()}

    async def seal_and_status(
        self, replicas: Mapping[int, ReplicaRecord], epoch: int, seconds: float = SEAL_SECONDS
    ) -> tuple[dict[int, SealedState], dict[int, ReplicaStatus]]:
        """As `seal`, and beside it how those do that answer: also who is sealed to a later epoch, and refuses."""
        return await asyncio.gather(self.seal(replicas, epoch, seconds), self.status(replicas))

    async def close(self) -> None:
        """Close all connections."""
        for channel in self._channels.values():
            channel.close()
        await asyncio.sleep(0)

    async def _ask(
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
                _log.debug("no answer of the replica at %s: %s", record.address, error)
            except Exception:  # noqa: BLE001 - whatever it is, the others' answers count
                _log.exception("a question to the replica at %s failed", record.address)
            return None

        asked: list[Awaitable[_T | None]] = [one(record) for record in replicas.values()]
        answers = await asyncio.gather(*asked)
        return {number: each for number, each in zip(replicas, answers, strict=True) if each is not None}

    def _channel(self, address: str) -> PromptChannel:
        channel = self._channels.pop(address, None) or PromptChannel(address, self._tls, waits_for_server=False)
        self._channels[address] = channel  # behind all others
        if len(self._channels) > _MOST_CHANNELS:
            self._channels.pop(next(iter(self._channels))).close()
        return channel


def sealed_state(told: Sealed) -> SealedState:
    """What was told on the wire, as elections take it."""
    return SealedState(
        told.replica,
        told.identity,
        told.nonce,
        told.sealed,
        told.epoch,
        StreamPosition(*told.end),
        tail_lost=told.tail_lost,
        healthy=told.healthy,
        priority=told.priority,
        reaches_keepers=told.reaches_keepers,
    )
