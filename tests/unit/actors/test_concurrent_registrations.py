"""Test that many brokers can register all of their topics at the same time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from raymq.actors.broker import name_server_registration
from raymq.actors.broker.name_server_registration import NameServerRegistration, registration_timeout
from raymq.actors.errors import InvalidInput, ServerBusy
from raymq.actors.names import route_handlers
from raymq.actors.names.route_table import LEARNING_SECONDS, MAX_TOPICS, RouteTable
from raymq.actors.protocol import QueueData
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.registration_commands import heartbeat_command, register_command, topics_json
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import Buffer, Command
from raymq.actors.wire.headers.route_headers import QueryDataVersion, RegisterBroker, UnregisterBroker
from raymq.actors.wire.server import Server, bind
from raymq.actors.wire.server_connection import ServerConnection
from raymq.storage.files.json_file import DataVersion
from tests.unit.actors.clock import FakeClock
from tests.validation import check_invariants

TOPICS = 4_000
VERSION = DataVersion(1, 1)


class Connection:
    """Stand in for a server connection that the test can end."""

    def __init__(self) -> None:
        self.is_gone = False
        self.ends: list[Callable[[], None]] = []

    def add_close_callback(self, call: Callable[[], None]) -> None:
        self.ends.append(call)

    def end(self) -> None:
        self.is_gone = True
        for call in self.ends:
            call()


class NameServer:
    """Serve a name server's handlers; each long answer is a task."""

    def __init__(self) -> None:
        clock = FakeClock()
        self.table = RouteTable(clock)
        clock.advance(LEARNING_SECONDS)
        self._handlers = route_handlers.handlers(self.table, lambda _: None)

    def ask(self, connection: Connection, command: Command) -> asyncio.Future[Command] | Command:
        answer: Any = self._handlers[command.code](cast("ServerConnection", connection), command)
        return answer if isinstance(answer, Command) else asyncio.ensure_future(answer)

    def register(self, connection: Connection, broker: str, topics: int = TOPICS, counter: int = 1) -> Any:
        sent = {f"t{n}": QueueData(broker, 4, 4) for n in range(topics)}
        who = RegisterBroker("c", broker, 0, "h:1")
        return self.ask(connection, register_command(who, DataVersion(counter, counter), [topics_json(sent)]))

    @property
    def brokers(self) -> list[str]:
        return list(self.table.view().brokers)


async def test_registrations_are_processed_sequentially() -> None:
    """Guard against eight interleaved registrations that all exceeded their brokers' timeouts."""
    server, done = NameServer(), list[int]()
    answers = [server.register(Connection(), f"b{n}") for n in range(8)]
    for number, answer in enumerate(answers):
        answer.add_done_callback(lambda _, number=number: done.append(number))
    await asyncio.gather(*answers)
    assert done == list(range(8))
    assert server.brokers == [f"b{n}" for n in range(8)]
    check_invariants(server.table)


async def test_short_requests_do_not_wait_for_long_registrations(may_read: threading.Event) -> None:
    server = NameServer()
    long = [server.register(Connection(), f"b{n}") for n in range(3)]
    assert isinstance(server.register(Connection(), "short", topics=10), Command)
    beat = heartbeat_command(QueryDataVersion("c", "short", 0, "h:1"), VERSION)
    assert isinstance(server.ask(Connection(), beat), Command)
    assert not any(answer.done() for answer in long)
    may_read.set()
    await asyncio.gather(*long)


@pytest.fixture
def may_read(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Hold every long registration until the event is set."""
    event, read = threading.Event(), route_handlers._read_registration

    def held(header: RegisterBroker, body: Buffer) -> Any:
        if len(body) > route_handlers._SHORT_BYTES:
            assert event.wait(30)
        return read(header, body)

    monkeypatch.setattr(route_handlers, "_read_registration", held)
    return event


@pytest.mark.parametrize("has_begun", [True, False])
async def test_newer_registration_supersedes_older(has_begun: bool, may_read: threading.Event) -> None:
    server, connection = NameServer(), Connection()
    others = [] if has_begun else [server.register(Connection(), "other")]
    old = server.register(connection, "b", counter=1)
    for _ in range(5):
        await asyncio.sleep(0)
    new = server.register(connection, "b", counter=2)
    may_read.set()
    with pytest.raises(ServerBusy):
        await old
    await asyncio.gather(new, *others)
    assert server.table.heartbeat("b", 0, "h:1", DataVersion(2, 2))
    check_invariants(server.table)


@pytest.mark.parametrize("has_begun", [True, False])
@pytest.mark.parametrize("how", ["its connection ends", "it leaves", "it says less"])
async def test_obsolete_registration_is_dropped(how: str, has_begun: bool, may_read: threading.Event) -> None:
    server, connection = NameServer(), Connection()
    others = [] if has_begun else [server.register(Connection(), "other")]
    answer = server.register(connection, "b")
    for _ in range(5):
        await asyncio.sleep(0)
    if how == "its connection ends":
        connection.end()
    elif how == "it leaves":
        server.ask(connection, UnregisterBroker("c", "b", 0, "h:1").command())
    else:
        server.register(connection, "b", topics=1, counter=2)
    may_read.set()
    with pytest.raises(ServerBusy):
        await answer
    await asyncio.gather(*others)
    assert ("b" in server.brokers) == (how == "it says less")
    assert len(server.table.topics()) == (TOPICS if others else how == "it says less")


async def test_unreadable_registration_does_not_block_next_one() -> None:
    server = NameServer()
    broken = server.ask(Connection(), RegisterBroker("c", "a", 0, "h:1").command(b"[" * 60_000))
    good = server.register(Connection(), "b")
    assert not isinstance(broken, Command)
    with pytest.raises(InvalidInput):
        await broken
    await good
    assert server.brokers == ["b"]


def test_registration_timeout_grows_with_topics_and_failures() -> None:
    assert registration_timeout(10, 0) <= 1.01
    assert registration_timeout(50_000, 0) >= 5
    for topics in (0, 1_000, 50_000):
        waits = [registration_timeout(topics, times) for times in range(12)]
        assert waits == sorted(waits)
        assert waits[1] == 2 * waits[0]
        assert waits[-1] == waits[-2] == registration_timeout(MAX_TOPICS, 10_000), "bounded"


class Topics:
    """Advertise a large table that does not change."""

    version = VERSION

    def advertised_queues(self) -> dict[str, QueueData]:
        return {f"t{n}": QueueData("b", 4, 4) for n in range(TOPICS)}

    def changed_since(self, _: DataVersion) -> dict[str, QueueData | None]:
        return {}


async def test_broker_registers_once_and_keeps_sending_heartbeats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guard against repeated registrations while the name server still reads the first one."""
    monkeypatch.setattr(name_server_registration, "NAME_SERVER_SECONDS", 0.1)
    sent: list[int] = []
    read: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def register(_: object, request: Command) -> Command:
        sent.append(request.code)
        await asyncio.shield(read)
        return request.response(ResponseCode.SUCCESS, {"changed": False})

    def heartbeat(_: object, request: Command) -> Command:
        sent.append(request.code)
        return request.response(ResponseCode.SUCCESS, {"changed": not read.done()})

    server = Server(
        {
            RequestCode.REGISTER_BROKER: lambda connection, request: register(connection, request),
            RequestCode.QUERY_DATA_VERSION: heartbeat,
        }
    )
    bound = bind("127.0.0.1", 0)
    await server.start(bound)
    pool = ConnectionPool()
    address = "{}:{}".format(*bound.getsockname())
    monkeypatch.setattr(name_server_registration, "_TOPICS_A_SECOND", TOPICS / 60)
    broker = NameServerRegistration(pool, [address], "c", "b", "127.0.0.1:1", Topics())
    try:
        for _ in range(3):
            await broker.announce()
            assert broker.troubles
        assert sent == [RequestCode.REGISTER_BROKER, RequestCode.QUERY_DATA_VERSION, RequestCode.QUERY_DATA_VERSION]
        read.set_result(None)
        await broker.announce()
        assert not broker.troubles
        await broker.announce()
        assert sent.count(RequestCode.REGISTER_BROKER) == 1
    finally:
        await pool.close()
        await server.stop()
