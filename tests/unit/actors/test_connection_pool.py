"""Test the connection pool: back-off, patient requests, retry hints, the second door, TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path

import pytest

from raymq.actors.backoff import Backoff
from raymq.actors.errors import BrokerUnavailable, ClientClosed, InvalidInput
from raymq.actors.protocol import Tls
from raymq.actors.wire import connection_pool
from raymq.actors.wire.connection_pool import EAGER_RETRY_SECONDS, ConnectionPool
from raymq.actors.wire.frame import FLAG_EARLY, Command, Serialization
from raymq.actors.wire.server import Server, bind
from raymq.actors.wire.server_connection import ServerConnection
from raymq.actors.wire.tls import client_context, server_context
from tests.certificates import certificates
from tests.wire_server import Peer, serving

ECHO = 1


def echo(_: ServerConnection, request: Command) -> Command:
    return request.response(0, request.fields, bytes(request.body))


class Address:
    """Reserve a port on which a server may listen later."""

    def __init__(self) -> None:
        self.bound = bind("127.0.0.1", 0)
        self.name = f"127.0.0.1:{self.bound.getsockname()[1]}"

    async def listen(self) -> Server:
        server = Server({ECHO: echo})
        await server.start(self.bound)
        return server


def shorten_backoff(pool: ConnectionPool, address: str, first: float) -> None:
    """Give one address a back-off with short waits."""
    pool._peers[address].backoff = Backoff(first=first, jitter=0.0)


async def test_patient_request_waits_and_others_fail_at_once() -> None:
    address, pool = Address(), ConnectionPool()
    loop = asyncio.get_running_loop()
    with pytest.raises(BrokerUnavailable, match="cannot connect"):
        await pool.get(address.name)
    assert pool.is_backing_off(address.name)
    shorten_backoff(pool, address.name, 0.05)
    pool._peers[address.name].not_before = loop.time() + 0.1
    began = loop.time()
    with pytest.raises(BrokerUnavailable, match="next attempt in"):
        await pool.request(address.name, Command(ECHO), 5)
    assert loop.time() - began < 0.05
    waiting = asyncio.ensure_future(pool.request(address.name, Command(ECHO), 5, patient=True))
    await asyncio.sleep(0.15)
    assert not waiting.done(), "its first attempt failed too"
    server = await address.listen()
    assert (await waiting).code == 0
    await pool.close()
    await server.stop()


async def test_eager_request_connects_during_backoff() -> None:
    address, pool = Address(), ConnectionPool()
    loop = asyncio.get_running_loop()
    with pytest.raises(BrokerUnavailable, match="cannot connect"):
        await pool.get(address.name)
    peer = pool._peers[address.name]
    peer.not_before = not_before = loop.time() + 100
    with pytest.raises(BrokerUnavailable, match="next attempt in"):
        await pool.get(address.name, eager=True)
    peer.eager_not_before = 0.0
    with pytest.raises(BrokerUnavailable, match="cannot connect"):
        await pool.get(address.name, eager=True)
    assert peer.not_before == not_before, "nobody else waits longer for it"
    waiting = asyncio.ensure_future(pool.wait_for_connection(address.name, 60.0))
    await asyncio.sleep(EAGER_RETRY_SECONDS)
    server = await address.listen()
    assert (await pool.request(address.name, Command(ECHO), 5, eager=True)).code == 0
    async with asyncio.timeout(2):
        await waiting
    assert not pool.is_backing_off(address.name)
    await pool.close()
    await server.stop()


async def test_patient_request_ends_with_its_timeout() -> None:
    address, pool = Address(), ConnectionPool()
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(BrokerUnavailable):
        await pool.get(address.name, 0.1, patient=True)
    assert loop.time() - began < 0.5, "the second attempt is due after 1 s: no use to wait for it"
    with pytest.raises(BrokerUnavailable):
        await pool.get(address.name, -1.0, patient=True)
    address.bound.close()
    await pool.close()


async def test_retry_now_ends_backoff() -> None:
    address, pool = Address(), ConnectionPool()
    with pytest.raises(BrokerUnavailable):
        await pool.get(address.name)
    peer = pool._peers[address.name]
    peer.not_before += 100
    peer.backoff.failures = 20
    waiting = asyncio.ensure_future(pool.get(address.name, 200, patient=True))
    await asyncio.sleep(0.02)
    server = await address.listen()
    pool.retry_now(address.name)
    async with asyncio.timeout(2):
        assert (await waiting).is_open
    assert peer.backoff.failures == 0
    pool.retry_now("127.0.0.1:1")  # an address without requests
    await pool.close()
    await server.stop()
    with pytest.raises(ClientClosed):
        await pool.get(address.name)


async def test_second_door_serves_unreachable_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[str, int]] = []

    async def door(address: str, command: Command, timeout: float) -> Command:
        assert 0 < timeout <= 2
        taken.append((address, command.code))
        return command.response(0, {"by": "door"})

    pool = ConnectionPool(second_door=door)
    refusing = Address()
    with pytest.raises(BrokerUnavailable):
        await pool.request(refusing.name, Command(ECHO), 2)
    assert not taken, "who refuses is there, and may come back"
    nowhere = "no-such-host.invalid:1"
    assert (await pool.request(nowhere, Command(ECHO), 2)).fields == {"by": "door"}
    assert (await pool.request(nowhere, Command(ECHO), 2)).fields == {"by": "door"}, "also while it backs off"
    assert taken == [(nowhere, ECHO)] * 2

    async def hang(*_: object, **__: object) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", hang)
    silent = "127.0.0.1:1"
    assert (await pool.request(silent, Command(ECHO), 0.2, patient=True)).fields == {"by": "door"}
    refusing.bound.close()
    await pool.close()


# -- TLS ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tls, Tls]:
    return certificates(tmp_path_factory.mktemp("tls"))


async def test_tls_carries_small_and_large_frames(tls: tuple[Tls, Tls]) -> None:
    server, _ = tls
    async with serving({ECHO: echo}, tls=server_context(server)) as (_, address):
        pool = ConnectionPool(tls=client_context(Tls(ca_file=server.ca_file)))
        bodies = [b"x", bytes(100_000), bytes(3 * 1024 * 1024)]
        answers = await asyncio.gather(*(pool.request(address, Command(ECHO, body=body), 5) for body in bodies))
        assert [bytes(answer.body) for answer in answers] == bodies
        await pool.close()


async def test_tls_refuses_unknown_certificates(tls: tuple[Tls, Tls], tmp_path: Path) -> None:
    server, client = tls
    stranger, _ = certificates(tmp_path)
    async with serving({ECHO: echo}, tls=server_context(server)) as (_, address):
        pools = [
            ConnectionPool(tls=client_context(Tls(ca_file=stranger.ca_file))),
            ConnectionPool(tls=client_context(Tls())),
        ]
        for pool in pools:
            with pytest.raises(BrokerUnavailable, match="certificate verify failed"):
                await pool.request(address, Command(ECHO), 5)
        by_name = address.replace("127.0.0.1", "localhost")
        strict = ConnectionPool(tls=client_context(Tls(ca_file=server.ca_file)))
        with pytest.raises(BrokerUnavailable, match="not valid for 'localhost'"):
            await strict.request(by_name, Command(ECHO), 5)
        lenient = ConnectionPool(tls=client_context(Tls(ca_file=server.ca_file, check_host=False)))
        assert (await lenient.request(by_name, Command(ECHO), 5)).code == 0
        plain = ConnectionPool()
        with pytest.raises(BrokerUnavailable):
            await plain.request(address, Command(ECHO), 5)
        for pool in (*pools, strict, lenient, plain):
            await pool.close()
    with_client_auth = Tls(server.ca_file, server.cert_file, server.key_file, client_auth=True)
    async with serving({ECHO: echo}, tls=server_context(with_client_auth)) as (_, address):
        known = ConnectionPool(tls=client_context(client))
        assert (await known.request(address, Command(ECHO), 5)).code == 0
        nameless = ConnectionPool(tls=client_context(Tls(ca_file=server.ca_file)))
        with pytest.raises(BrokerUnavailable):
            await nameless.request(address, Command(ECHO), 5)
        await known.close()
        await nameless.close()


async def test_connection_without_handshake_is_closed(tls: tuple[Tls, Tls]) -> None:
    async with serving({ECHO: echo}, tls=server_context(tls[0])) as (server, address):
        peer = await Peer.connect(address)
        peer.say(Command(ECHO))
        with contextlib.suppress(ConnectionResetError):
            await peer.reader.read()
        assert not server.connections


@pytest.mark.parametrize(
    "files",
    [
        Tls(),
        Tls(cert_file="missing.pem", key_file="missing.key"),
        Tls(cert_file="missing.pem"),
        Tls(ca_file="missing.pem"),
    ],
)
def test_unusable_tls_files_raise_invalid_input(files: Tls) -> None:
    with pytest.raises(InvalidInput, match="tls"):
        server_context(files)
    if files != Tls():
        with pytest.raises(InvalidInput, match="tls"):
            client_context(files)


def test_client_auth_requires_ca_file(tls: tuple[Tls, Tls]) -> None:
    server, _ = tls
    with pytest.raises(InvalidInput, match="tls_ca_file"):
        server_context(Tls(None, server.cert_file, server.key_file, client_auth=True))
    context = client_context(server).now()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


async def test_request_may_have_early_answers() -> None:
    def several(connection: ServerConnection, request: Command) -> Command:
        for number in range(3):
            early = request.response(0, body=b"%d" % number)
            early.flag |= FLAG_EARLY
            connection.send(early)
        return request.response(0, body=b"last")

    async with serving({ECHO: several}) as (_, address):
        pool = ConnectionPool()
        early_bodies: list[bytes] = []
        command = Command(ECHO, serialization=Serialization.MSGPACK)
        answer = await pool.request(
            address, command, 5, on_early_answer=lambda early: early_bodies.append(bytes(early.body))
        )
        assert (early_bodies, bytes(answer.body)) == ([b"0", b"1", b"2"], b"last")
        assert bytes((await pool.request(address, command, 5)).body) == b"last", "who does not want them has the last"

        def refuses(_: Command) -> None:
            raise InvalidInput("x", "y", "z")

        with pytest.raises(InvalidInput):
            await pool.request(address, command, 5, on_early_answer=refuses)
        connection = await pool.get(address)
        assert (connection._on_early, connection._waiting) == ({}, {})
        await pool.close()


async def test_pauses_are_shortened_once_after_total_outage() -> None:
    name_server, broker, dead, pool = Address(), Address(), Address(), ConnectionPool()
    pool.probe_addresses = [name_server.name]
    loop = asyncio.get_running_loop()
    for address in (name_server, broker, dead):
        with pytest.raises(BrokerUnavailable):
            await pool.get(address.name)
    assert pool.is_offline
    for address in (broker, dead):  # as after minutes of outage
        pool._peers[address.name].not_before = loop.time() + 100
        pool._peers[address.name].backoff.failures = 20
    servers = [await name_server.listen(), await broker.listen()]
    async with asyncio.timeout(3):
        assert (await pool.get(broker.name, 200, patient=True)).is_open
    assert not pool.is_offline
    assert pool._peers[dead.name].backoff.failures <= 1
    pool._peers[dead.name].not_before = later = loop.time() + 100
    pool._peers[broker.name].connection.abort()  # type: ignore[union-attr]
    await asyncio.sleep(0.01)
    assert (await pool.get(broker.name)).is_open
    assert pool._peers[dead.name].not_before == later, "others answered all the time: no pause is cut again"
    await pool.close()
    dead.bound.close()
    for server in servers:
        await server.stop()


async def test_offline_pool_probes_addresses_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_pool, "PROBE_SECONDS", 0.02)
    addresses = [Address(), Address(), Address()]
    names, tried, pool = [address.name for address in addresses], list[str](), ConnectionPool()
    pool.probe_addresses = names
    enough = asyncio.Event()
    connect = pool._connect

    async def counted(address: str, peer: connection_pool._Peer) -> connection_pool.WireConnection:
        tried.append(address)
        if len(tried) == 7:
            enough.set()
        return await connect(address, peer)

    monkeypatch.setattr(pool, "_connect", counted)
    with pytest.raises(BrokerUnavailable):
        await pool.get(names[1])
    for peer in pool._peers.values():
        peer.not_before += 100
    async with asyncio.timeout(2):
        await enough.wait()
    assert tried == [names[1], *names, *names]
    await pool.close()
    for address in addresses:
        address.bound.close()


async def test_pool_with_one_connection_does_not_probe() -> None:
    living, dead, pool = Address(), Address(), ConnectionPool()
    pool.probe_addresses = [dead.name]
    server = await living.listen()
    await pool.get(living.name)
    with pytest.raises(BrokerUnavailable):
        await pool.get(dead.name)
    assert not pool.is_offline
    assert pool._probing is None
    await pool.close()
    dead.bound.close()
    await server.stop()
