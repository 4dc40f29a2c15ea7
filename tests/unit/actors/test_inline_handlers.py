"""Test handlers that answer inline: when they do, and that clients get the same answers."""

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

INLINE, WAIT = 900_100, 900_101


class InlineHandler:
    """Echo bodies, and record whether each was answered inline."""

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


def encode_request(opaque: int, body: bytes, code: int = INLINE) -> bytes:
    return bare.request(code, opaque, len(body)) + body


async def test_single_bare_request_is_answered_inline() -> None:
    handler = InlineHandler()
    async with serving({INLINE: handler}) as (_, address):
        peer = await Peer.connect(address)
        for opaque in range(1, 4):
            peer.writer.write(encode_request(opaque, b"%d" % opaque))
            answer = await peer.hear()
            assert (answer.code, answer.opaque, answer.body) == (0, opaque, b"%d" % opaque)
        assert handler.ways == ["prompt"] * 3
        usual = Command(INLINE, {}, b"x", opaque=9, serialization=Serialization.MSGPACK)
        peer.say(usual)
        assert (await peer.hear()).opaque == 9
        assert handler.ways.pop() == "usual"
        peer.close()


async def test_joined_and_split_requests_are_served_in_order() -> None:
    handler = InlineHandler()
    async with serving({INLINE: handler}) as (_, address):
        peer = await Peer.connect(address)
        together = b"".join(encode_request(opaque, b"%d" % opaque) for opaque in range(1, 30))
        for start in range(0, len(together), 7):
            peer.writer.write(together[start : start + 7])
            await asyncio.sleep(0)
        peer.writer.write(together)
        answers = [await peer.hear() for _ in range(58)]
        assert [answer.opaque for answer in answers] == [*range(1, 30), *range(1, 30)]
        peer.close()


async def test_request_without_inline_answer_takes_usual_path() -> None:
    handler = InlineHandler()
    async with serving({INLINE: handler, WAIT: discard_body(wait)}) as (server, address):
        peer = await Peer.connect(address)
        peer.writer.write(encode_request(1, b"not now"))
        assert (await peer.hear()).body == b"not now"
        peer.writer.write(encode_request(2, b"", WAIT))
        while not any(connection.tasks for connection in server.connections):  # noqa: ASYNC110
            await asyncio.sleep(0)
        peer.writer.write(encode_request(3, b"while another waits"))
        assert (await peer.hear()).opaque == 3
        assert handler.ways == ["usual", "usual"]
        peer.close()


async def test_unread_inline_answers_stop_reading() -> None:
    handler = InlineHandler()
    limits = ServerLimits(write_high_bytes=100_000, write_low_bytes=50_000)
    async with serving({INLINE: handler}, limits=limits) as (server, address):
        host, _, port = address.rpartition(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)  # the default holds tens of megabytes
            client.connect((host, int(port)))
            while not server.connections:  # noqa: ASYNC110
                await asyncio.sleep(0)
            (connection,) = server.connections
            assert connection._transport is not None
            assert connection._writer is not None
            for opaque in range(1, 20_000):
                served = len(handler.ways)
                client.sendall(encode_request(opaque, bytes(1_000)))
                while len(handler.ways) == served and connection._transport.is_reading():  # noqa: ASYNC110
                    await asyncio.sleep(0)
                if not connection._transport.is_reading():
                    break
            assert not connection._transport.is_reading(), f"{len(handler.ways)} answers are unread"
            assert handler.ways[0] == "prompt"
            assert connection._writer.unsent_bytes <= limits.write_high_bytes + 2_000


async def test_handler_errors_are_answered() -> None:
    handler = InlineHandler()
    async with serving({INLINE: handler}) as (_, address):
        answers = []
        for frame in (
            encode_request(5, b"bad"),
            encode_frame(Command(INLINE, {}, b"bad", 5, serialization=Serialization.MSGPACK)),
        ):
            peer = await Peer.connect(address)
            peer.writer.write(frame)
            answers.append(await peer.hear())
            peer.close()
        assert answers[0] == answers[1]
        assert answers[0].code != ResponseCode.SUCCESS
        assert handler.ways == ["prompt", "usual"]


async def test_failure_after_answer_sends_no_second_answer(caplog: pytest.LogCaptureFixture) -> None:
    async with serving({INLINE: InlineHandler()}) as (_, address):
        peer = await Peer.connect(address)
        for opaque, body in enumerate((b"late", b"next"), 1):
            peer.writer.write(encode_request(opaque, body))
            assert (await peer.hear()).body == body
        assert "failed after it was answered" in caplog.text
        peer.close()


async def test_stopping_or_authorizing_server_skips_inline_answers() -> None:
    handler, seen = InlineHandler(), []
    async with serving({INLINE: handler}, authorize=lambda _, request: seen.append(request.code)) as (server, address):
        peer = await Peer.connect(address)
        peer.writer.write(encode_request(1, b"x"))
        assert (await peer.hear()).body == b"x"
        assert (seen, handler.ways) == ([INLINE], ["usual"])
        server.authorize, server.draining = None, True
        peer.writer.write(encode_request(2, b"x"))
        assert (await peer.hear()).code == ResponseCode.GO_AWAY
        peer.close()


async def test_blocking_channel_returns_bodies_or_errors() -> None:
    handler = InlineHandler()
    async with serving({INLINE: handler, WAIT: discard_body(wait)}) as (server, address):
        pool = BlockingChannelPool()

        def ask(body: bytes, code: int = INLINE, timeout: float = 5.0) -> bytes | None:
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


async def test_concurrent_threads_get_matching_answers() -> None:
    async with serving({INLINE: InlineHandler()}) as (_, address):
        pool = BlockingChannelPool()

        def ask(thread: int) -> bool:
            bodies = [b"%d-%d" % (thread, number) for number in range(200)]
            return [bytes(pool.ask(address, INLINE, body, 5) or b"") for body in bodies] == bodies

        for threads in (1, 2, 4):
            assert all(await asyncio.gather(*(asyncio.to_thread(ask, thread) for thread in range(threads))))
        assert pool._asking == []
        pool.close()


class DeferredHandler(InlineHandler):
    """Answer when the test sets the future, inline or not."""

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


async def wait_for_requests(handler: DeferredHandler, count: int) -> None:
    while len(handler.waiting) < count:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_deferred_answer_is_sent_when_its_future_is_done() -> None:
    handler = DeferredHandler()
    async with serving({INLINE: handler}) as (server, address):
        peer = await Peer.connect(address)
        peer.writer.write(encode_request(1, b"a"))
        await wait_for_requests(handler, 1)
        peer.writer.write(encode_request(2, b"b"))  # not the only request: the usual path
        await wait_for_requests(handler, 2)
        (connection,) = server.connections
        assert len(connection.tasks) == 2
        assert server.room.held_bytes == connection._request_bytes > 0
        for number, body in ((1, b"second"), (0, b"first")):
            handler.waiting[number].set_result(body)
            assert len(connection.tasks) == number, "it is answered when `set_result` returns"
        assert [(await peer.hear()).body for _ in range(2)] == [b"second", b"first"]
        assert handler.ways == ["prompt", "usual"]
        assert server.room.held_bytes == connection._request_bytes == 0
        peer.writer.write(encode_request(3, b"c"))
        await wait_for_requests(handler, 3)
        handler.waiting[2].set_exception(InvalidInput("body", "good", "bad"))
        assert (await peer.hear()).code != ResponseCode.SUCCESS
        peer.close()


async def test_closed_connection_is_kept_until_deferred_answer() -> None:
    handler = DeferredHandler()
    async with serving({INLINE: handler}) as (server, address):
        peer = await Peer.connect(address)
        peer.writer.write(encode_request(1, b"a"))
        await wait_for_requests(handler, 1)
        (connection,) = server.connections
        peer.close()
        while not connection.is_gone:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert server.connections == {connection}
        handler.waiting[0].set_result(b"nobody reads it")
        assert not server.connections
        assert server.room.held_bytes == 0


async def test_stopping_server_waits_for_deferred_answer() -> None:
    handler = DeferredHandler()
    async with serving({INLINE: handler}) as (server, address):
        peer = await Peer.connect(address)
        peer.writer.write(encode_request(1, b"a"))
        await wait_for_requests(handler, 1)
        stopping = asyncio.ensure_future(server.stop())
        await asyncio.sleep(0)
        handler.waiting[0].set_result(b"in time")
        assert (await peer.hear()).body == b"in time"
        peer.close()
        await stopping


async def test_unread_deferred_answer_waits_for_peer() -> None:
    handler = DeferredHandler()
    async with serving({INLINE: handler}) as (server, address):
        peer = await Peer.connect(address)
        peer.writer.write(encode_request(1, b"a"))
        await wait_for_requests(handler, 1)
        (connection,) = server.connections
        connection._writable.clear()
        handler.waiting[0].set_result(b"x")
        await asyncio.sleep(0)
        assert len(connection.tasks) == 1, "it waits for its peer"
        connection._writable.set()
        assert (await peer.hear()).body == b"x"
        peer.close()
