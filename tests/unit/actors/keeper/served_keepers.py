"""Run keepers on loopback in this process, with a register that reaches them by sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

from raymq.actors.keeper.keeper_record import KeeperRecord
from raymq.actors.keeper.keeper_register import KeeperRegister
from raymq.actors.keeper.keeper_set import KeeperMember, KeeperSet
from raymq.actors.keeper.serving.quorum_transport import SocketQuorumTransport
from raymq.actors.keeper.serving.service import KeeperService
from raymq.actors.protocol import KeeperSpec


def spec_of(number: int, folder: Path, port: int = 0) -> KeeperSpec:
    return KeeperSpec(number, "c", str(folder / f"host-{number}"), "127.0.0.1", port)


def record_of(number: int, keepers: KeeperSet) -> KeeperRecord:
    return KeeperRecord("c", number, keepers.members[number].incarnation, keepers)


class ServedKeepers:
    """Hold keepers by number; stopped keepers are not in `up`."""

    def __init__(self, folder: Path, ports: Mapping[int, int] = MappingProxyType({})) -> None:
        """Use `ports` as listening ports, for keepers that another process has founded."""
        self.folder = folder
        self._ports = ports
        self.up: dict[int, KeeperService] = {}
        self.keepers = KeeperSet()
        self._transports: list[SocketQuorumTransport] = []

    async def start(self, number: int) -> KeeperService:
        service = self.up[number] = await KeeperService.start(spec_of(number, self.folder, self._ports.get(number, 0)))
        return service

    async def stop(self, number: int) -> None:
        await self.up.pop(number).stop()

    async def found(self, count: int) -> None:
        members = {}
        for number in range(1, count + 1):
            members[number] = KeeperMember((await self.start(number)).address, f"made-{number}")
        self.keepers = KeeperSet(1, members)
        for number, service in self.up.items():
            await service.found(record_of(number, self.keepers))

    def file_of(self, number: int) -> Path:
        return Path(spec_of(number, self.folder).directory) / f"keeper-{number}.record"

    def transport(self) -> SocketQuorumTransport:
        self._transports.append(SocketQuorumTransport())
        return self._transports[-1]

    def register(self, keepers: KeeperSet | None = None) -> KeeperRegister:
        return KeeperRegister(keepers or self.keepers, self.transport())

    async def end(self) -> None:
        for transport in self._transports:
            await transport.close()
        self._transports.clear()
        for number in list(self.up):
            await self.stop(number)


@asynccontextmanager
async def served_keepers(folder: Path, count: int = 3) -> AsyncIterator[ServedKeepers]:
    keepers = ServedKeepers(folder)
    try:
        await keepers.found(count)
        yield keepers
    finally:
        await keepers.end()
