"""Many brokers tell a name server all of their topics at the same time: it comes to an end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from raymq.actors.broker import name_server_registration
from raymq.actors.broker.name_server_registration import NameServerRegistration, registration_timeout
from raymq.actors.errors import InvalidInput, ServerBusy
from raymq.actors.names import route_handlers
from raymq.actors.names.route_table import LEARNING_SECONDS, MAX_PER_CONNECTION, MAX_TOPICS, RouteTable
from raymq.actors.protocol import QueueData
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.registration_commands import heartbeat_command, register_command, topics_json
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.route_headers import QueryDataVersion, RegisterBroker, UnregisterBroker
from raymq.actors.wire.server import Server, bind
from raymq.actors.wire.server_connection import ServerConnection
from raymq.storage.files.json_file import DataVersion
from tests.unit.actors.clock import FakeClock

TOPICS = 4_000
VERSION = DataVersion(1, 1)


class Connection:
    """What a handler asks of one."""

    def __init__(self) -> None:
        self.ends: list[Callable[[], None]] = []

    def add_close_callback(self, call: Callable[[], None]) -> None:
        self.ends.append(call)

    def end(self) -> None:
        for call in self.ends:
            call()


class NameServer:
    """Its handlers; each answer is a task."""

    def __init__(self) -> None:
        clock = FakeClock()
        self.table = RouteTable(clock)
        clock.advance(LEARNING_SECONDS)
        self._handlers = route_handlers.handlers(self.table, lambda _: None)

    def ask(self, connection: Connection, command: Command) -> asyncio.Future[Command] | Command:
        answer: Any = self._handlers[command.code](cast("ServerConnection", connection), command)
        return answer if isinstance(answer, Command) else asyncio.ensure_future(answer)

    def register(self, connection: Connection, broker: str, topics: int = TOPICS, counter: int = 1) -> Any:
        told = {f"t{n}": QueueData(broker, 4, 4) for n in range(topics)}
        who = RegisterBroker("c", broker, 0, "h:1")
        return self.ask(connection, register_command(who, DataVersion(counter, counter), [topics_json(told)]))

    @property
    def brokers(self) -> list[str]:
        return list(self.table.view().brokers)


async def turns_until(is_so: Callable[[], bool]) -> int:
    for turn in range(10_000):
        if is_so():
            return turn
        await asyncio.sleep(0)
    raise AssertionError("never")


async def test_registrations_are_read_one_after_another() -> None:
    """Eight that were read side by side all ended at the end of all: after the patience of every broker."""
    alone = NameServer()
    turns_of_one = await turns_until(alone.register(Connection(), "alone").done)
    server = NameServer()
    answers = [server.register(Connection(), f"b{n}") for n in range(8)]
    first = await turns_until(answers[0].done)
    assert first <= 2 * turns_of_one
    assert not any(answer.done() for answer in answers[1:])
    for number, answer in enumerate(answers):
        await turns_until(answer.done)
        assert [each.done() for each in answers] == [True] * (number + 1) + [False] * (7 - number)
    assert server.brokers == [f"b{n}" for n in range(8)]
    server.table.validate()


async def test_what_is_short_does_not_wait_for_what_is_long() -> None:
    server = NameServer()
    long = [server.register(Connection(), f"b{n}") for n in range(3)]
    assert isinstance(server.register(Connection(), "short", topics=10), Command)
    beat = heartbeat_command(QueryDataVersion("c", "short", 0, "h:1"), VERSION)
    assert isinstance(server.ask(Connection(), beat), Command)
    assert not any(answer.done() for answer in long)
    await asyncio.gather(*long)


@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_newer_registration_of_a_broker_ends_the_one_before(has_begun: bool) -> None:
    server, connection = NameServer(), Connection()
    others = [] if has_begun else [server.register(Connection(), "other")]
    old = server.register(connection, "b", counter=1)
    for _ in range(5):
        await asyncio.sleep(0)
    new = server.register(connection, "b", counter=2)
    with pytest.raises(ServerBusy):
        await old
    assert not new.done(), "the old one did not go on until its end"
    await asyncio.gather(new, *others)
    assert server.table.heartbeat("b", 0, "h:1", DataVersion(2, 2))
    server.table.validate()


async def test_who_waits_keeps_his_place_with_a_newer_registration() -> None:
    server, connection = NameServer(), Connection()
    first = server.register(Connection(), "first")
    old = server.register(connection, "b")
    last = server.register(Connection(), "last")
    new = server.register(connection, "b", counter=2)
    await asyncio.gather(first, new)
    assert not last.done()
    assert server.brokers == ["b", "first"]
    with pytest.raises(ServerBusy):
        await old
    await last


@pytest.mark.parametrize("has_begun", [True, False])
@pytest.mark.parametrize("how", ["its connection ends", "it leaves", "it says less"])
async def test_what_nobody_waits_for_is_not_read(how: str, has_begun: bool) -> None:
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
    with pytest.raises(ServerBusy):
        await answer
    await asyncio.gather(*others)
    for _ in range(200):
        await asyncio.sleep(0)
    assert ("b" in server.brokers) == (how == "it says less")
    assert len(server.table.topics()) == (TOPICS if others else how == "it says less")


async def test_a_connection_has_only_so_many_registrations_waiting() -> None:
    server, connection = NameServer(), Connection()
    first = server.register(Connection(), "first")
    many = [server.register(connection, f"b{n}") for n in range(MAX_PER_CONNECTION)]
    with pytest.raises(InvalidInput, match="connection"):
        server.register(connection, "one more")
    assert not first.done()
    await asyncio.gather(first, *many)


async def test_a_registration_that_cannot_be_read_is_answered_and_the_next_one_is_read() -> None:
    server = NameServer()
    broken = server.ask(Connection(), RegisterBroker("c", "a", 0, "h:1").command(b"[" * 60_000))
    good = server.register(Connection(), "b")
    assert not isinstance(broken, Command)
    with pytest.raises(InvalidInput):
        await broken
    await good
    assert server.brokers == ["b"]


def test_patience_grows_with_the_topics_and_with_each_time_that_was_too_short() -> None:
    assert registration_timeout(10, 0) <= 1.01
    assert registration_timeout(50_000, 0) >= 5
    for topics in (0, 1_000, 50_000):
        waits = [registration_timeout(topics, times) for times in range(12)]
        assert waits == sorted(waits)
        assert waits[1] == 2 * waits[0]
        assert waits[-1] == waits[-2] == registration_timeout(MAX_TOPICS, 10_000), "bounded"


class Topics:
    """A large table that stays as it is."""

    version = VERSION

    def advertised_queues(self) -> dict[str, QueueData]:
        return {f"t{n}": QueueData("b", 4, 4) for n in range(TOPICS)}

    def changed_since(self, _: DataVersion) -> dict[str, QueueData | None]:
        return {}


async def test_a_broker_tells_everything_once_and_goes_on_saying_that_it_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every second it told everything again, to a name server that was still reading what it had told before."""
    monkeypatch.setattr(name_server_registration, "NAME_SERVER_SECONDS", 0.1)
    told: list[int] = []
    read: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def register(_: object, request: Command) -> Command:
        told.append(request.code)
        await asyncio.shield(read)
        return request.response(ResponseCode.SUCCESS, {"changed": False})

    def heartbeat(_: object, request: Command) -> Command:
        told.append(request.code)
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
        assert told == [RequestCode.REGISTER_BROKER, RequestCode.QUERY_DATA_VERSION, RequestCode.QUERY_DATA_VERSION]
        read.set_result(None)
        await broker.announce()
        assert not broker.troubles
        await broker.announce()
        assert told.count(RequestCode.REGISTER_BROKER) == 1
    finally:
        await pool.close()
        await server.stop()
