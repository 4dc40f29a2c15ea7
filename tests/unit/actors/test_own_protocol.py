"""Two sides of a connection tell which versions of our own protocol they speak, and the older one counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from raymq.actors.errors import BrokerUnavailable, ProtocolError, VersionMismatch
from raymq.actors.protocol import BrokerInfo
from raymq.actors.wire import protocol_version
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.admin_commands import read_status, status_answer, status_command
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.protocol_version import NEWEST, OLDEST, VersionRange, negotiate
from raymq.actors.wire.server import Server, bind
from raymq.actors.wire.server_connection import ServerConnection
from raymq.storage.version import VERSION

ECHO, ECHO_OF_OURS, UNKNOWN_OF_OURS = 7, 900_901, 900_902


def echo(_: ServerConnection, request: Command) -> Command:
    return request.response(ResponseCode.SUCCESS, body=request.body)


def of_old(request: Command) -> Command:
    """What RayMQ answered before versions were told, and RocketMQ answers, to a code that is not served."""
    remark = f" request type {request.code} not supported"
    return request.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)


@asynccontextmanager
async def served() -> AsyncIterator[tuple[ConnectionPool, str, Server]]:
    """A pool, and a server with the echoes."""
    server = Server({ECHO: echo, ECHO_OF_OURS: echo})
    bound = bind("127.0.0.1", 0)
    address = f"127.0.0.1:{bound.getsockname()[1]}"
    await server.start(bound)
    pool = ConnectionPool()
    try:
        yield pool, address, server
    finally:
        await pool.close()
        await server.stop()


def of_ours(code: int) -> Command:
    return Command(code, serialization=Serialization.MSGPACK)


@pytest.mark.parametrize(
    ("theirs", "version"),
    [
        (VersionRange(), 1),  # nothing was told
        (VersionRange(NEWEST, OLDEST), NEWEST),
        (VersionRange(NEWEST + 5, OLDEST), NEWEST),  # a newer one speaks as we do
        (VersionRange(NEWEST + 5, NEWEST), NEWEST),
        (VersionRange(NEWEST + 5, NEWEST + 1, "9.9"), None),  # it has forgotten how
    ],
)
def test_the_older_side_counts(theirs: VersionRange, version: int | None) -> None:
    if version is not None:
        assert negotiate("h:1", theirs) == version
        return
    with pytest.raises(
        VersionMismatch, match=r"h:1 \(RayMQ 9.9\) speaks versions 4 to 8 .* this side 1 to 3"
    ) as raised:
        negotiate("h:1", theirs)
    assert raised.value.theirs == (4, 8)
    assert raised.value.ours == (1, 3)
    assert "upgrade the RayMQ of this program" in raised.value.remedy


def test_one_that_is_too_old_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol_version, "OLDEST", 2)
    with pytest.raises(VersionMismatch, match="upgrade the RayMQ of that server"):
        negotiate("h:1", VersionRange())


def test_both_know_it_after_connecting() -> None:
    async def main() -> None:
        async with served() as (pool, address, _):
            assert await pool.version(address, 5.0) == NEWEST
            assert bytes((await pool.request(address, of_ours(ECHO_OF_OURS), 5.0)).body) == b""

    asyncio.run(main())


def test_an_older_server_is_asked_in_the_first_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is a server of RocketMQ's."""

    async def main() -> None:
        async with served() as (pool, address, server):
            server.handlers = {ECHO: echo, ECHO_OF_OURS: echo}
            monkeypatch.setattr(protocol_version, "unsupported_response", of_old)
            assert await pool.version(address, 5.0) == 1
            await pool.request(address, of_ours(ECHO_OF_OURS), 5.0)

    asyncio.run(main())


def test_what_an_older_server_does_not_know_is_an_error_that_names_both_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with served() as (pool, address, _):
            monkeypatch.setattr(protocol_version, "unsupported_response", of_old)
            with pytest.raises(VersionMismatch, match=r"speaks versions 1 to 1 .* this side 1 to 3.*900902") as raised:
                await pool.request(address, of_ours(UNKNOWN_OF_OURS), 5.0)
            assert raised.value.peer == address
            assert "upgrade the RayMQ of that server" in raised.value.remedy
            assert raised.value.wire_code == "VERSION_NOT_SUPPORTED"
            assert raised.value.code == "REQUEST_CODE_NOT_SUPPORTED"
            with pytest.raises(ProtocolError) as foreign:  # what RocketMQ's codes come to is no question of ours
                await pool.request(address, Command(1234), 5.0)
            assert not isinstance(foreign.value, VersionMismatch)
            assert await pool.request(address, Command(ECHO), 5.0)  # the connection goes on

    asyncio.run(main())


def test_what_a_server_of_our_version_does_not_serve_is_no_question_of_versions() -> None:
    async def main() -> None:
        async with served() as (pool, address, _):
            with pytest.raises(ProtocolError, match="900902") as raised:
                await pool.request(address, of_ours(UNKNOWN_OF_OURS), 5.0)
            assert not isinstance(raised.value, VersionMismatch)
            assert raised.value.code == "REQUEST_CODE_NOT_SUPPORTED"

    asyncio.run(main())


def test_a_server_with_no_version_in_common_is_not_asked_in_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(connection: ServerConnection, request: Command) -> Command:
        asked.append(request.code)
        return echo(connection, request)

    def newer(_: object, request: Command) -> Command:
        told = {"raymqNewest": NEWEST + 7, "raymqOldest": NEWEST + 1, "raymqRelease": "9.9"}
        return request.response(ResponseCode.SUCCESS, told)

    async def main() -> None:
        async with served() as (pool, address, server):
            server.handlers = {ECHO: counted, ECHO_OF_OURS: counted, RequestCode.AGREE_VERSIONS: newer}
            with pytest.raises(VersionMismatch, match=r"RayMQ 9.9"):
                await pool.version(address, 5.0)
            for _ in range(2):
                with pytest.raises(VersionMismatch, match=r"RayMQ 9.9"):
                    await pool.request(address, of_ours(ECHO_OF_OURS), 5.0)
            await pool.request(address, Command(ECHO), 5.0)  # what is RocketMQ's goes on
        assert asked == [ECHO]

    asyncio.run(main())


@pytest.mark.parametrize(
    "told",
    [
        {"raymqNewest": "x", "raymqOldest": "1", "raymqRelease": ""},
        {"raymqNewest": 0, "raymqOldest": 0, "raymqRelease": ""},
        {"raymqNewest": 3},
    ],
)
def test_nonsense_of_a_server_harms_nobody(told: dict[str, object]) -> None:
    async def main() -> None:
        async with served() as (pool, address, server):
            answer = {RequestCode.AGREE_VERSIONS: lambda _, request: request.response(0, told)}
            server.handlers = {**server.handlers, **answer}
            with pytest.raises(ProtocolError):
                await pool.version(address, 5.0)
            await pool.request(address, of_ours(ECHO_OF_OURS), 5.0)

    asyncio.run(main())


def test_a_server_that_says_nothing_is_waited_for_only_by_who_asks() -> None:
    async def main() -> None:
        async with served() as (pool, address, server):
            silence: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
            server.handlers = {**server.handlers, RequestCode.AGREE_VERSIONS: lambda *_: silence}
            await pool.request(address, of_ours(ECHO_OF_OURS), 5.0)
            with pytest.raises(BrokerUnavailable, match="no answer within"):
                await pool.version(address, 0.05)
            silence.cancel()

    asyncio.run(main())


def test_a_request_that_needs_no_connection_of_ours_tells_a_foreign_client_nothing() -> None:
    """RocketMQ's clients get the answer that they always got."""
    foreign = Command(1234, opaque=3)
    assert protocol_version.unsupported_response(foreign) == of_old(foreign)


# What a broker says of itself


STATUS = BrokerInfo("broker-a", 0, "master", "running", 1, "h:1", 2, "n", "/s", 0.5, version=VERSION)


def test_the_version_is_told_to_who_reads_it() -> None:
    assert read_status(status_answer(status_command(), STATUS)) == STATUS


def test_an_older_client_gets_the_fields_that_it_knows() -> None:
    """It took any other one for a broker that does not answer."""
    of_older = Command(RequestCode.STATUS, serialization=Serialization.MSGPACK)
    assert "version" not in status_answer(of_older, STATUS).fields


def test_what_a_later_version_adds_to_a_status_is_passed_over() -> None:
    answer = status_answer(status_command(), STATUS)
    answer.fields["mood"] = "good"
    assert read_status(answer) == STATUS
