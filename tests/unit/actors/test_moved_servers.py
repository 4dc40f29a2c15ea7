"""Test that clients reach servers whose machines have changed their addresses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from raymq.actors import address_watch
from raymq.actors.address_watch import names_by_address, refresh_address, resolve_own_address
from raymq.actors.errors import Timeout
from raymq.actors.keeper.keeper_set import KeeperMember, KeeperSet
from raymq.actors.wire import address_resolution
from raymq.actors.wire.commands.keeper_commands import keepers_command
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.reconnecting_channel import ReconnectingChannel

#: Reserved for documentation: no server has this address.
GONE = "192.0.2.1:9876"


@pytest.fixture(autouse=True)
def _no_moved_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_resolution, "_addresses", {})


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5.0)
        yield listener


@pytest.fixture
def server(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


def test_connections_use_moved_address(listener: socket.socket, server: str) -> None:
    address_resolution.moved(GONE, server)

    async def connect() -> None:
        pool = ConnectionPool()
        connection = await pool.get(GONE, 5.0)
        assert connection.is_open
        await pool.close()
        channel = ReconnectingChannel(GONE)
        with pytest.raises(Timeout):  # the connected listener does not answer
            await channel.request(keepers_command(), 0.2)
        channel.close()

    asyncio.run(connect())
    for _ in range(2):
        listener.accept()[0].close()


def test_own_loopback_address_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "10.1.2.3")
    assert resolve_own_address("127.0.0.1") == "127.0.0.1"
    assert resolve_own_address("192.0.2.1") == "10.1.2.3"


def test_servers_are_named_by_start_addresses() -> None:
    keepers = KeeperSet(1, {2: KeeperMember("10.0.0.2:77", "x")}).to_json()
    assert names_by_address(["10.0.0.1:9876", "10.0.0.3:9877"], keepers) == {
        "10.0.0.1:9876": "name-server-0",
        "10.0.0.3:9877": "name-server-1",
        "10.0.0.2:77": "keeper-2",
    }
    assert names_by_address([], None) == {}


def test_unreachable_server_address_is_refreshed(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = []

    def call(name: str, *_: object, **__: object) -> str:
        lookups.append(name)
        return server

    monkeypatch.setattr(address_watch.actor_calls, "find", lambda *_: None)
    monkeypatch.setattr(address_watch.actor_calls, "call", call)
    with socket.create_server(("127.0.0.1", 0)) as ended:
        gone = f"127.0.0.1:{ended.getsockname()[1]}"
    assert refresh_address(gone, "name-server-0", "raymq") == address_resolution.now(gone) == server
    assert refresh_address(gone, "name-server-0", "raymq") is None
    assert lookups == ["name-server-0"]
