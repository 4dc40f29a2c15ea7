"""A client goes where its broker group's new master is: at once when it is told, and soon when it is told nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from raymq.actors import route_cache
from raymq.actors.errors import BrokerUnavailable, ConnectionLost, StoreFollows, Timeout
from raymq.actors.names.service import NameServerService
from raymq.actors.protocol import NameServerSpec, QueueData
from raymq.actors.route_cache import RouteCache
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server import Server, bind
from raymq.actors.wire.server_connection import ServerConnection
from raymq.storage.files.json_file import DataVersion

TOPICS = {"t": QueueData("a", 2, 2)}


async def serve(_: ServerConnection, request: Command) -> Command:
    return request.response(ResponseCode.SUCCESS)


async def refuse(_: ServerConnection, request: Command) -> Command:
    raise StoreFollows("a: this broker is not the master now")


async def hang(_: ServerConnection, request: Command) -> Command:
    await asyncio.Event().wait()
    raise AssertionError


class Group:
    """Two brokers of a group behind a name server, of which the first one was master."""

    def __init__(self, names: NameServerService) -> None:
        self.names = names
        self.pool = ConnectionPool()
        self.routes = RouteCache(self.pool, [names.address])
        self.addresses: list[str] = []
        self.servers: list[Server] = []

    async def add(self, does: Callable[[ServerConnection, Command], Awaitable[Command]]) -> None:
        bound = bind("127.0.0.1", 0, is_chosen=False)
        self.addresses.append(f"127.0.0.1:{bound.getsockname()[1]}")
        server = Server({RequestCode.FETCH: does})
        await server.start(bound)
        self.servers.append(server)

    def elect(self, number: int, epoch: int) -> None:
        self.names.table.register("c", "a", 0, self.addresses[number], TOPICS, DataVersion(1, 1, epoch))

    async def address(self) -> str:
        return (await self.routes.get("t")).addresses["a"]

    async def ask(self, timeout: float = 5.0) -> Command:
        return await self.pool.request(await self.address(), Command(RequestCode.FETCH), timeout)


@asynccontextmanager
async def group(
    directory: Path, *does: Callable[[ServerConnection, Command], Awaitable[Command]]
) -> AsyncIterator[Group]:
    names = await NameServerService.start(NameServerSpec(0, str(directory), "127.0.0.1", 0))
    made = Group(names)
    try:
        for each in does:
            await made.add(each)
        made.elect(0, 1)
        assert await made.address() == made.addresses[0]
        yield made
    finally:
        await made.pool.close()
        for server in made.servers:
            await server.stop()
        await names.stop()


async def test_who_is_told_that_a_broker_is_not_the_master_asks_for_the_route_anew(tmp_path: Path) -> None:
    async with group(tmp_path, refuse, serve) as made:
        made.elect(1, 2)
        with pytest.raises(BrokerUnavailable, match="not the master"):
            await made.ask()
        assert (await made.ask()).code == ResponseCode.SUCCESS


async def test_who_gets_no_connection_or_no_answer_asks_for_the_route_anew(tmp_path: Path) -> None:
    async with group(tmp_path, hang, serve) as made:
        made.elect(1, 2)
        with pytest.raises(Timeout):
            await made.ask(0.2)
        assert await made.address() == made.addresses[1]
        await made.servers[1].stop()
        made.elect(0, 3)
        with pytest.raises(BrokerUnavailable):
            await made.ask()
        assert await made.address() == made.addresses[0]


async def test_a_name_server_that_is_cut_off_with_the_former_master_keeps_nobody_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients reach it, and the new master does not."""
    monkeypatch.setattr(route_cache, "_DOUBT_SECONDS", 0.0)
    (tmp_path / "other").mkdir()
    async with group(tmp_path, refuse, serve) as made:
        other = await NameServerService.start(NameServerSpec(1, str(tmp_path / "other"), "127.0.0.1", 0))
        try:
            made.routes.name_servers.append(other.address)
            other.table.register("c", "a", 0, made.addresses[1], TOPICS, DataVersion(1, 1, 2))
            for _ in range(2):  # the first one to be asked is the one that is cut off, and says what it has said
                with pytest.raises(BrokerUnavailable, match="not the master"):
                    await made.ask()
            assert (await made.ask()).code == ResponseCode.SUCCESS
            assert (await made.ask()).code == ResponseCode.SUCCESS
        finally:
            await other.stop()


async def test_what_waits_at_a_former_master_is_given_up_once_another_one_is_known(tmp_path: Path) -> None:
    """As a fetch that is parked there for 15 s, if its machine hangs."""
    async with group(tmp_path, hang, serve) as made:
        parked = asyncio.create_task(made.ask(60.0))
        while not made.servers[0].connections:  # noqa: ASYNC110 - it says so to nobody
            await asyncio.sleep(0.01)
        made.elect(1, 2)
        made.routes.doubt(made.addresses[0])  # as whoever else got no answer there
        assert await made.address() == made.addresses[1]
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(parked, 10.0)


async def test_a_broker_is_not_doubted_by_each_of_many_failures(tmp_path: Path) -> None:
    """Whoever is refused a thousand times a second does not ask name servers as often."""
    async with group(tmp_path, refuse, serve) as made:
        asked = 0
        ask = made.routes.ask

        async def counting(command: Command, timeout: float = 3.0, *, patient: bool = True) -> Command:
            nonlocal asked
            asked += 1
            return await ask(command, timeout, patient=patient)

        made.routes.ask = counting  # type: ignore[method-assign]
        for _ in range(50):
            with pytest.raises(BrokerUnavailable):
                await made.ask()
        assert 1 <= asked <= 5
