"""Requests that are answered at once: when that is their way, and that it is the same to those who ask."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from raymq.actors.errors import BrokerUnavailable, ConnectionLost, InvalidInput, Timeout
from raymq.actors.wire import bare_frame as bare
from raymq.actors.wire.blocking_channel import BlockingChannelPool
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.server_connection import ServerConnection, discard_body
from raymq.actors.wire.server_limits import ServerLimits
from raymq.actors.wire.sync_callback_future import SyncCallbackFuture
from tests.wire_server import Peer, encode_frame, serving

PROMPT, WAIT = 900_100, 900_101


class Prompt:
    """Gives bodies back, and says which way each came."""

    def __init__(self) -> None:
        self.ways: list[str] = []

    def __call__(self, _: ServerConnection, request: Command) -> Command:
        self.ways.append("usual")
        if request.body == b"bad":
            raise InvalidInput("body", "good", "bad")
        return request.response(0, body=bytes(request.body))

    def try_answer_inline(self, body: memoryview, answer: Callable[[bytes], None]) -> bool:
        if body == b"not now":
            return False
        self.ways.append("prompt")
        if body == b"bad":
            raise InvalidInput("body", "good", "bad")
        answer(bytes(body))
        if body == b"late":
            raise ValueError("after it was answered")
        return True


async def wait(_: ServerConnection, __: Command) -> Command | None:
    await asyncio.get_running_loop().create_future()
    return None


def asked(opaque: int, body: bytes, code: int = PROMPT) -> bytes:
    return bare.request(code, opaque, len(body)) + body


async def test_a_bare_request_that_comes_alone_is_answered_at_once() -> None:
    handler = Prompt()
    async with serving({PROMPT: handler}) as (_, address):
        peer = await Peer.connect(address)
        for opaque in range(1, 4):
            peer.writer.write(asked(opaque, b"%d" % opaque))
            answer = await peer.hear()
            assert (answer.code, answer.opaque, answer.body) == (0, opaque, b"%d" % opaque)
        assert handler.ways == ["prompt"] * 3
        usual = Command(PROMPT, {}, b"x", opaque=9, serialization=Serialization.MSGPACK)
        peer.say(usual)
        assert (await peer.hear()).opaque == 9
        assert handler.ways.pop() == "usual"
        peer.close()


async def test_in_company_and_in_pieces_they_are_served_in_order() -> None:
    handler = Prompt()
    async with serving({PROMPT: handler}) as (_, address):
        peer = await Peer.connect(address)
        together = b"".join(asked(opaque, b"%d" % opaque) for opaque in range(1, 30))
        for start in range(0, len(together), 7):
            peer.writer.write(together[start : start + 7])
            await asyncio.sleep(0)
        peer.writer.write(together)
        answers = [await peer.hear() for _ in range(58)]
        assert [answer.opaque for answer in answers] == [*range(1, 30), *range(1, 30)]
        peer.close()


async def test_what_cannot_be_answered_at_once_takes_the_usual_way() -> None:
    handler = Prompt()
    async with serving({PROMPT: handler, WAIT: discard_body(wait)}) as (server, address):
        peer = await Peer.connect(address)
        peer.writer.write(asked(1, b"not now"))
        assert (await peer.hear()).body == b"not now"
        peer.writer.write(asked(2, b"", WAIT))
        while not any(connection.tasks for connection in server.connections):  # noqa: ASYNC110
            await asyncio.sleep(0)
        peer.writer.write(asked(3, b"while another waits"))
        assert (await peer.hear()).opaque == 3
        assert handler.ways == ["usual", "usual"]
        peer.close()


async def test_answers_that_nobody_reads_do_not_pile_up() -> None:
    handler = Prompt()
    limits = ServerLimits(write_high_bytes=100_000, write_low_bytes=50_000)
    async with serving({PROMPT: handler}, limits=limits) as (server, address):
        host, _, port = address.rpartition(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)  # it would hold tens of megabytes otherwise
            client.connect((host, int(port)))
            while not server.connections:  # noqa: ASYNC110
                await asyncio.sleep(0)
            (connection,) = server.connections
            assert connection._transport is not None
            assert connection._writer is not None
            for opaque in range(1, 20_000):
                served = len(handler.ways)
                client.sendall(asked(opaque, bytes(1_000)))
                while len(handler.ways) == served and connection._transport.is_reading():  # noqa: ASYNC110
                    await asyncio.sleep(0)
                if not connection._transport.is_reading():
                    break
            assert not connection._transport.is_reading(), f"{len(handler.ways)} answers are unread"
            assert handler.ways[0] == "prompt"
            assert connection._writer.unsent_bytes <= limits.write_high_bytes + 2_000


async def test_errors_are_answers() -> None:
    handler = Prompt()
    async with serving({PROMPT: handler}) as (_, address):
        answers = []
        for frame in (
            asked(5, b"bad"),
            encode_frame(Command(PROMPT, {}, b"bad", 5, serialization=Serialization.MSGPACK)),
        ):
            peer = await Peer.connect(address)
            peer.writer.write(frame)
            answers.append(await peer.hear())
            peer.close()
        assert answers[0] == answers[1]
        assert answers[0].code != ResponseCode.SUCCESS
        assert handler.ways == ["prompt", "usual"]


async def test_a_failure_behind_the_answer_is_not_a_second_one(caplog: pytest.LogCaptureFixture) -> None:
    async with serving({PROMPT: Prompt()}) as (_, address):
        peer = await Peer.connect(address)
        for opaque, body in enumerate((b"late", b"next"), 1):
            peer.writer.write(asked(opaque, body))
            assert (await peer.hear()).body == body
        assert "failed after it was answered" in caplog.text
        peer.close()


async def test_a_stopping_server_and_one_that_authorizes_look_at_each_request() -> None:
    handler, seen = Prompt(), []
    async with serving({PROMPT: handler}, authorize=lambda _, request: seen.append(request.code)) as (server, address):
        peer = await Peer.connect(address)
        peer.writer.write(asked(1, b"x"))
        assert (await peer.hear()).body == b"x"
        assert (seen, handler.ways) == ([PROMPT], ["usual"])
        server.authorize, server.draining = None, True
        peer.writer.write(asked(2, b"x"))
        assert (await peer.hear()).code == ResponseCode.GO_AWAY
        peer.close()


async def test_a_channel_asks_and_gets_bodies_or_errors() -> None:
    handler = Prompt()
    async with serving({PROMPT: handler, WAIT: discard_body(wait)}) as (server, address):
        pool = BlockingChannelPool()

        def ask(body: bytes, code: int = PROMPT, timeout: float = 5.0) -> bytes | None:
            answer = pool.ask(address, code, body, timeout)
            return None if answer is None else bytes(answer)

        for body in (b"x", b"not now", b"y" * 60_000, b"z"):
            assert await asyncio.to_thread(ask, body) == body
        with pytest.raises(InvalidInput):
            await asyncio.to_thread(ask, b"bad")
        assert len(server.connections) == 1, "an error is an answer"
        with pytest.raises(Timeout):
            await asyncio.to_thread(ask, b"", WAIT, 0.05)
        while server.connections:  # noqa: ASYNC110 - the channel was closed
            await asyncio.sleep(0.01)
        waiting = asyncio.ensure_future(asyncio.to_thread(ask, b"", WAIT, 30.0))
        while not any(connection.tasks for connection in server.connections):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for connection in list(server.connections):
            connection.close()
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(waiting, 5)
        assert await asyncio.to_thread(ask, b"again") == b"again"
        server.draining = True
        with pytest.raises(BrokerUnavailable):
            await asyncio.to_thread(ask, b"x")
        assert pool._asking == [], "whatever became of them"
        pool.close()
        assert await asyncio.to_thread(ask, b"x") is None


async def test_threads_that_ask_at_the_same_time_get_their_own_answers() -> None:
    async with serving({PROMPT: Prompt()}) as (_, address):
        pool = BlockingChannelPool()

        def ask(thread: int) -> bool:
            bodies = [b"%d-%d" % (thread, number) for number in range(200)]
            return [bytes(pool.ask(address, PROMPT, body, 5) or b"") for body in bodies] == bodies

        for threads in (1, 2, 4):
            assert all(await asyncio.gather(*(asyncio.to_thread(ask, thread) for thread in range(threads))))
        assert pool._asking == []
        pool.close()


class Later(Prompt):
    """Answers when it is told to, both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[SyncCallbackFuture[bytes]] = []

    def __call__(self, _: ServerConnection, request: Command) -> SyncCallbackFuture[Command]:  # type: ignore[override]
        self.ways.append("usual")
        made: SyncCallbackFuture[Command] = SyncCallbackFuture(loop=asyncio.get_running_loop())
        self.waiting.append(SyncCallbackFuture(loop=asyncio.get_running_loop()))
        self.waiting[-1].add_sync_callback(lambda body: made.set_result(request.response(0, body=body.result())))
        return made

    def try_answer_inline(self, body: memoryview, answer: Callable[[bytes], None]) -> SyncCallbackFuture[bytes]:  # type: ignore[override]
        self.ways.append("prompt")
        self.waiting.append(SyncCallbackFuture(loop=asyncio.get_running_loop()))
        return self.waiting[-1]


async def asked_for(handler: Later, count: int) -> None:
    while len(handler.waiting) < count:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_what_others_have_to_be_waited_for_is_answered_in_the_turn_in_which_they_have_it() -> None:
    handler = Later()
    async with serving({PROMPT: handler}) as (server, address):
        peer = await Peer.connect(address)
        peer.writer.write(asked(1, b"a"))
        await asked_for(handler, 1)
        peer.writer.write(asked(2, b"b"))  # it does not come alone: the usual way
        await asked_for(handler, 2)
        (connection,) = server.connections
        assert len(connection.tasks) == 2
        assert server.room.held_bytes == connection._request_bytes > 0
        for number, body in ((1, b"second"), (0, b"first")):
            handler.waiting[number].set_result(body)
            assert len(connection.tasks) == number, "it is answered when `set_result` returns"
        assert [(await peer.hear()).body for _ in range(2)] == [b"second", b"first"]
        assert handler.ways == ["prompt", "usual"]
        assert server.room.held_bytes == connection._request_bytes == 0
        peer.writer.write(asked(3, b"c"))
        await asked_for(handler, 3)
        handler.waiting[2].set_exception(InvalidInput("body", "good", "bad"))
        assert (await peer.hear()).code != ResponseCode.SUCCESS
        peer.close()


async def test_a_connection_that_ends_meanwhile_keeps_its_server_until_it_would_be_answered() -> None:
    handler = Later()
    async with serving({PROMPT: handler}) as (server, address):
        peer = await Peer.connect(address)
        peer.writer.write(asked(1, b"a"))
        await asked_for(handler, 1)
        (connection,) = server.connections
        peer.close()
        while not connection.is_gone:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert server.connections == {connection}
        handler.waiting[0].set_result(b"nobody reads it")
        assert not server.connections
        assert server.room.held_bytes == 0


async def test_a_server_that_stops_gives_what_is_waited_for_its_time() -> None:
    handler = Later()
    async with serving({PROMPT: handler}) as (server, address):
        peer = await Peer.connect(address)
        peer.writer.write(asked(1, b"a"))
        await asked_for(handler, 1)
        stopping = asyncio.ensure_future(server.stop())
        await asyncio.sleep(0)
        handler.waiting[0].set_result(b"in time")
        assert (await peer.hear()).body == b"in time"
        peer.close()
        await stopping


async def test_answers_that_come_later_and_nobody_reads_do_not_pile_up() -> None:
    handler = Later()
    async with serving({PROMPT: handler}) as (server, address):
        peer = await Peer.connect(address)
        peer.writer.write(asked(1, b"a"))
        await asked_for(handler, 1)
        (connection,) = server.connections
        connection._writable.clear()
        handler.waiting[0].set_result(b"x")
        await asyncio.sleep(0)
        assert len(connection.tasks) == 1, "it waits for its peer"
        connection._writable.set()
        assert (await peer.hear()).body == b"x"
        peer.close()
