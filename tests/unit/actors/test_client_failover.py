"""Test that clients follow a broker group to its new master."""

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
    """Run brokers of a group behind a name server; the first one starts as master."""

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
async def run_group(
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


async def test_not_master_error_refreshes_route(tmp_path: Path) -> None:
    async with run_group(tmp_path, refuse, serve) as made:
        made.elect(1, 2)
        with pytest.raises(BrokerUnavailable, match="not the master"):
            await made.ask()
        assert (await made.ask()).code == ResponseCode.SUCCESS


async def test_timeout_or_refused_connection_refreshes_route(tmp_path: Path) -> None:
    async with run_group(tmp_path, hang, serve) as made:
        made.elect(1, 2)
        with pytest.raises(Timeout):
            await made.ask(0.2)
        assert await made.address() == made.addresses[1]
        await made.servers[1].stop()
        made.elect(0, 3)
        with pytest.raises(BrokerUnavailable):
            await made.ask()
        assert await made.address() == made.addresses[0]


async def test_partitioned_name_server_does_not_pin_former_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let clients, but not the new master, reach one of the name servers."""
    monkeypatch.setattr(route_cache, "_DOUBT_SECONDS", 0.0)
    (tmp_path / "other").mkdir()
    async with run_group(tmp_path, refuse, serve) as made:
        other = await NameServerService.start(NameServerSpec(1, str(tmp_path / "other"), "127.0.0.1", 0))
        try:
            made.routes.name_servers.append(other.address)
            other.table.register("c", "a", 0, made.addresses[1], TOPICS, DataVersion(1, 1, 2))
            for _ in range(2):  # the partitioned name server is asked first and repeats its old answer
                with pytest.raises(BrokerUnavailable, match="not the master"):
                    await made.ask()
            assert (await made.ask()).code == ResponseCode.SUCCESS
            assert (await made.ask()).code == ResponseCode.SUCCESS
        finally:
            await other.stop()


async def test_new_master_ends_request_parked_at_former_master(tmp_path: Path) -> None:
    """Cover a fetch that is parked for 15 s on a machine that hangs."""
    async with run_group(tmp_path, hang, serve) as made:
        parked = asyncio.create_task(made.ask(60.0))
        while not made.servers[0].connections:  # noqa: ASYNC110 - connections have no event
            await asyncio.sleep(0.01)
        made.elect(1, 2)
        made.routes.doubt(made.addresses[0])  # as another request without an answer does
        assert await made.address() == made.addresses[1]
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(parked, 10.0)


async def test_repeated_failures_cause_few_route_requests(tmp_path: Path) -> None:
    """Limit requests to name servers under a thousand refusals a second."""
    async with run_group(tmp_path, refuse, serve) as made:
        route_requests = 0
        ask = made.routes.ask

        async def counting(command: Command, timeout: float = 3.0, *, patient: bool = True) -> Command:
            nonlocal route_requests
            route_requests += 1
            return await ask(command, timeout, patient=patient)

        made.routes.ask = counting  # type: ignore[method-assign]
        for _ in range(50):
            with pytest.raises(BrokerUnavailable):
                await made.ask()
        assert 1 <= route_requests <= 5
