"""Test the negotiation of the version of RayMQ's own protocol: the older side decides."""

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


def old_unsupported_response(request: Command) -> Command:
    """Answer an unknown code as RocketMQ does, and RayMQ before it had versions."""
    remark = f" request type {request.code} not supported"
    return request.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)


@asynccontextmanager
async def run_server() -> AsyncIterator[tuple[ConnectionPool, str, Server]]:
    """Yield a pool, and a server with the echo handlers."""
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


def raymq_command(code: int) -> Command:
    return Command(code, serialization=Serialization.MSGPACK)


@pytest.mark.parametrize(
    ("theirs", "version"),
    [
        (VersionRange(), 1),  # no version was sent
        (VersionRange(NEWEST, OLDEST), NEWEST),
        (VersionRange(NEWEST + 5, OLDEST), NEWEST),  # a newer side also supports our version
        (VersionRange(NEWEST + 5, NEWEST), NEWEST),
        (VersionRange(NEWEST + 5, NEWEST + 1, "9.9"), None),  # it no longer supports our version
    ],
)
def test_older_version_is_negotiated(theirs: VersionRange, version: int | None) -> None:
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


def test_too_old_server_error_names_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol_version, "OLDEST", 2)
    with pytest.raises(VersionMismatch, match="upgrade the RayMQ of that server"):
        negotiate("h:1", VersionRange())


def test_version_is_known_after_connecting() -> None:
    async def main() -> None:
        async with run_server() as (pool, address, _):
            assert await pool.version(address, 5.0) == NEWEST
            assert bytes((await pool.request(address, raymq_command(ECHO_OF_OURS), 5.0)).body) == b""

    asyncio.run(main())


def test_older_server_gets_version_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat a RocketMQ server in the same way."""

    async def main() -> None:
        async with run_server() as (pool, address, server):
            server.handlers = {ECHO: echo, ECHO_OF_OURS: echo}
            monkeypatch.setattr(protocol_version, "unsupported_response", old_unsupported_response)
            assert await pool.version(address, 5.0) == 1
            await pool.request(address, raymq_command(ECHO_OF_OURS), 5.0)

    asyncio.run(main())


def test_unknown_request_at_older_server_names_both_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with run_server() as (pool, address, _):
            monkeypatch.setattr(protocol_version, "unsupported_response", old_unsupported_response)
            with pytest.raises(VersionMismatch, match=r"speaks versions 1 to 1 .* this side 1 to 3.*900902") as raised:
                await pool.request(address, raymq_command(UNKNOWN_OF_OURS), 5.0)
            assert raised.value.peer == address
            assert "upgrade the RayMQ of that server" in raised.value.remedy
            assert raised.value.wire_code == "VERSION_NOT_SUPPORTED"
            assert raised.value.code == "REQUEST_CODE_NOT_SUPPORTED"
            with pytest.raises(ProtocolError) as foreign:  # RocketMQ's codes do not depend on our version
                await pool.request(address, Command(1234), 5.0)
            assert not isinstance(foreign.value, VersionMismatch)
            assert await pool.request(address, Command(ECHO), 5.0)  # the connection stays open

    asyncio.run(main())


def test_unknown_request_at_same_version_is_no_version_mismatch() -> None:
    async def main() -> None:
        async with run_server() as (pool, address, _):
            with pytest.raises(ProtocolError, match="900902") as raised:
                await pool.request(address, raymq_command(UNKNOWN_OF_OURS), 5.0)
            assert not isinstance(raised.value, VersionMismatch)
            assert raised.value.code == "REQUEST_CODE_NOT_SUPPORTED"

    asyncio.run(main())


def test_server_without_common_version_gets_no_raymq_request(monkeypatch: pytest.MonkeyPatch) -> None:
    served_codes: list[int] = []

    def counted(connection: ServerConnection, request: Command) -> Command:
        served_codes.append(request.code)
        return echo(connection, request)

    def newer(_: object, request: Command) -> Command:
        told = {"raymqNewest": NEWEST + 7, "raymqOldest": NEWEST + 1, "raymqRelease": "9.9"}
        return request.response(ResponseCode.SUCCESS, told)

    async def main() -> None:
        async with run_server() as (pool, address, server):
            server.handlers = {ECHO: counted, ECHO_OF_OURS: counted, RequestCode.AGREE_VERSIONS: newer}
            with pytest.raises(VersionMismatch, match=r"RayMQ 9.9"):
                await pool.version(address, 5.0)
            for _ in range(2):
                with pytest.raises(VersionMismatch, match=r"RayMQ 9.9"):
                    await pool.request(address, raymq_command(ECHO_OF_OURS), 5.0)
            await pool.request(address, Command(ECHO), 5.0)  # RocketMQ's requests are still served
        assert served_codes == [ECHO]

    asyncio.run(main())


@pytest.mark.parametrize(
    "told",
    [
        {"raymqNewest": "x", "raymqOldest": "1", "raymqRelease": ""},
        {"raymqNewest": 0, "raymqOldest": 0, "raymqRelease": ""},
        {"raymqNewest": 3},
    ],
)
def test_malformed_version_answer_raises_protocol_error(told: dict[str, object]) -> None:
    async def main() -> None:
        async with run_server() as (pool, address, server):
            answer = {RequestCode.AGREE_VERSIONS: lambda _, request: request.response(0, told)}
            server.handlers = {**server.handlers, **answer}
            with pytest.raises(ProtocolError):
                await pool.version(address, 5.0)
            await pool.request(address, raymq_command(ECHO_OF_OURS), 5.0)

    asyncio.run(main())


def test_missing_version_answer_does_not_delay_requests() -> None:
    async def main() -> None:
        async with run_server() as (pool, address, server):
            silence: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
            server.handlers = {**server.handlers, RequestCode.AGREE_VERSIONS: lambda *_: silence}
            await pool.request(address, raymq_command(ECHO_OF_OURS), 5.0)
            with pytest.raises(BrokerUnavailable, match="no answer within"):
                await pool.version(address, 0.05)
            silence.cancel()

    asyncio.run(main())


def test_rocketmq_client_gets_plain_unsupported_answer() -> None:
    """Keep the answer that RocketMQ's clients expect."""
    foreign = Command(1234, opaque=3)
    assert protocol_version.unsupported_response(foreign) == old_unsupported_response(foreign)


# Status of a broker


STATUS = BrokerInfo("broker-a", 0, "master", "running", 1, "h:1", 2, "n", "/s", 0.5, version=VERSION)


def test_status_includes_version() -> None:
    assert read_status(status_answer(status_command(), STATUS)) == STATUS


def test_status_for_older_client_omits_version() -> None:
    """Omit fields that an older client takes for a broker without an answer."""
    of_older = Command(RequestCode.STATUS, serialization=Serialization.MSGPACK)
    assert "version" not in status_answer(of_older, STATUS).fields


def test_unknown_status_fields_are_ignored() -> None:
    answer = status_answer(status_command(), STATUS)
    answer.fields["mood"] = "good"
    assert read_status(answer) == STATUS
