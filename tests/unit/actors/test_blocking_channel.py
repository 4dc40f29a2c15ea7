"""Test blocking channels: answers, errors, timeouts, closed peers, limits, TLS and forks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from raymq.actors.errors import BrokerUnavailable, ConnectionLost, RayMQError, ServerBusy, Timeout
from raymq.actors.wire import frame
from raymq.actors.wire.blocking_channel import CHANNELS_PER_ADDRESS, BlockingChannel, BlockingChannelPool
from raymq.actors.wire.frame import Buffer, Command
from raymq.actors.wire.server_connection import ServerConnection, discard_body
from raymq.actors.wire.server_limits import ServerLimits
from raymq.actors.wire.tls import client_context, server_context
from tests.certificates import certificates
from tests.polling import poll_until
from tests.wire_server import serving

ECHO, BUSY, SILENT = 1, 2, 3


def echo(_: ServerConnection, request: Command) -> Command:
    return request.response(0, request.fields, bytes(request.body))


def busy(_: ServerConnection, __: Command) -> Command:
    raise ServerBusy("not now")


def silent(_: ServerConnection, __: Command) -> Awaitable[Command]:
    return asyncio.get_running_loop().create_future()


HANDLERS = {ECHO: echo, BUSY: busy, SILENT: discard_body(silent)}


def connections(pool: BlockingChannelPool) -> int:
    return len(pool._open)


async def test_channel_is_reused_by_one_thread() -> None:
    async with serving(HANDLERS) as (server, address):
        pool = BlockingChannelPool()
        for number in range(20):
            answer = await asyncio.to_thread(pool.request, address, Command(ECHO, body=b"%d" % number * 9_000), 5)
            assert answer is not None
            assert answer.body == b"%d" % number * 9_000
        assert len(server.connections) == connections(pool) == 1
        with pytest.raises(ServerBusy, match="not now"):
            await asyncio.to_thread(pool.request, address, Command(BUSY), 5)
        assert await asyncio.to_thread(pool.request, address, Command(ECHO), 5), "an error is an answer"
        assert len(server.connections) == 1
        pool.close()
        assert await asyncio.to_thread(pool.request, address, Command(ECHO), 5) is None


async def test_requests_begin_before_earlier_answers_are_read() -> None:
    async with serving(HANDLERS) as (_, address):
        pool = BlockingChannelPool()
        bodies = [b"first" * 50_000, b"second"]
        begun = [await asyncio.to_thread(pool.begin, address, Command(ECHO, body=body), 5) for body in bodies]
        for body, channel in reversed(list(zip(bodies, begun, strict=True))):
            assert channel is not None
            assert (await asyncio.to_thread(pool.finish, channel, 5)).body == body
        assert connections(pool) == 2
        silent_one = await asyncio.to_thread(pool.begin, address, Command(SILENT), 5)
        assert silent_one is not None
        with pytest.raises(Timeout):
            await asyncio.to_thread(pool.finish, silent_one, 0.0)
        assert connections(pool) == 1
        pool.close()


async def test_channel_pipelines_several_requests() -> None:
    async with serving(HANDLERS) as (server, address):
        pool = BlockingChannelPool()
        channel = await asyncio.to_thread(pool.open, address, 5)
        assert channel is not None

        def bodies() -> list[Buffer]:
            first, second, third = (channel.write(Command(ECHO, body=body), 5) for body in (b"1" * 50_000, b"2", b"3"))
            channel.forget(second)
            return [channel.read(5, third).body, channel.read(5, first).body]

        assert await asyncio.to_thread(bodies) == [b"3", b"1" * 50_000]
        assert not channel.has_pending_answer
        assert channel.is_reusable
        assert await asyncio.to_thread(pool.request, address, Command(ECHO), 5), "it is beside those that are shared"
        assert len(server.connections) == connections(pool) == 2
        pool.end(channel)
        assert connections(pool) == 1
        pool.close()
        assert await asyncio.to_thread(pool.open, address, 5) is None


async def test_timeout_closes_channel() -> None:
    async with serving(HANDLERS) as (_, address):
        pool = BlockingChannelPool()
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(Timeout):
            await asyncio.to_thread(pool.request, address, Command(SILENT), 0.2)
        assert 0.2 <= loop.time() - began < 2
        assert connections(pool) == 0
        assert await asyncio.to_thread(pool.request, address, Command(ECHO), 5)
        pool.close()


@pytest.fixture
def talker() -> Iterator[tuple[str, threading.Event]]:
    """Yield an event and the address of a peer that never answers for 15 s.

    The event is set if the peer talked for the whole time, and was not cut short.
    """
    exhausted = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    unasked = bytes(frame.encode(Command(0, flag=1, opaque=12345678), 1 << 20)) * 200

    def talk() -> None:
        near, _ = listener.accept()
        with near, contextlib.suppress(OSError):
            near.recv(1 << 16)
            until = time.monotonic() + 15
            while time.monotonic() < until:
                near.sendall(unasked)
            exhausted.set()

    thread = threading.Thread(target=talk)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}", exhausted
    thread.join(20)
    listener.close()


@pytest.mark.parametrize(
    "ask",
    [
        lambda pool, address: pool.request(address, Command(ECHO), 0.3),
        lambda pool, address: pool.ask(address, ECHO, b"x", 0.3),
    ],
    ids=["request", "ask"],
)
def test_unrelated_frames_do_not_extend_timeout(
    talker: tuple[str, threading.Event], ask: Callable[[BlockingChannelPool, str], object]
) -> None:
    address, exhausted = talker
    pool = BlockingChannelPool()
    with pytest.raises(Timeout):
        ask(pool, address)
    assert not exhausted.is_set(), "it was not he who ended it"
    assert connections(pool) == 0
    pool.close()


async def test_channel_closed_by_server_is_reopened() -> None:
    async with serving(HANDLERS, limits=ServerLimits(idle_seconds=0.05)) as (server, address):
        pool = BlockingChannelPool()
        for _ in range(2):
            assert await asyncio.to_thread(pool.request, address, Command(ECHO), 5), "opened anew, not lost"
            while server.connections:  # noqa: ASYNC110 - the server's sweep has no event
                await asyncio.sleep(0.01)
        pool.close()


async def test_draining_server_is_unavailable_and_absent_gives_none() -> None:
    async with serving(HANDLERS) as (server, address):
        pool = BlockingChannelPool()
        assert await asyncio.to_thread(pool.request, address, Command(ECHO), 5)
        server.draining = True
        with pytest.raises(BrokerUnavailable):
            await asyncio.to_thread(pool.request, address, Command(ECHO), 5)
    assert await asyncio.to_thread(pool.request, address, Command(ECHO), 5) is None, "nothing listens, nothing was sent"


async def test_lost_connection_and_close_raise_connection_lost() -> None:
    async with serving(HANDLERS) as (server, address):
        pool = BlockingChannelPool()
        for end in (lambda: [connection.close() for connection in list(server.connections)], pool.close):
            waiting = asyncio.ensure_future(asyncio.to_thread(pool.request, address, Command(SILENT), 30))
            while not any(connection.tasks for connection in server.connections):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            end()
            with pytest.raises(ConnectionLost):
                await asyncio.wait_for(waiting, 5)


@pytest.mark.parametrize("how", ["close", "end"])
async def test_waiting_thread_closes_its_descriptor(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Guard against closing a descriptor under a thread that is about to wait for it.

    The thread then waited for whatever had got the descriptor's number.
    """
    closers: list[int] = []
    close = socket.socket.close

    def record_close(closed: socket.socket) -> None:
        if closed.fileno() == waited_for:
            closers.append(threading.get_ident())
        close(closed)

    async with serving(HANDLERS) as (server, address):
        pool = BlockingChannelPool()
        channel = await asyncio.to_thread(pool.open, address, 5)
        assert channel is not None
        waited_for = channel._socket.fileno()
        monkeypatch.setattr(socket.socket, "close", record_close)

        def wait(channel: BlockingChannel) -> int:
            channel.write(Command(SILENT), 5)
            with pytest.raises(ConnectionLost):
                channel.read(30)
            return threading.get_ident()

        waiting = asyncio.ensure_future(asyncio.to_thread(wait, channel))
        while not any(connection.tasks for connection in server.connections):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        pool.close() if how == "close" else pool.end(channel)
        waiter = await asyncio.wait_for(waiting, 5)
        assert set(closers) == {waiter}
        pool.close()


async def test_pool_close_closes_idle_channel() -> None:
    async with serving(HANDLERS) as (server, address):
        pool = BlockingChannelPool()
        assert await asyncio.to_thread(pool.request, address, Command(ECHO), 5)
        (channel,) = pool._open
        descriptor = channel._socket.fileno()
        del channel
        pool.close()
        assert not pool._open
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
        while server.connections:  # noqa: ASYNC110 - the server's close has no event
            await asyncio.sleep(0.01)


async def test_threads_beyond_limit_get_no_channel() -> None:
    async with serving(HANDLERS) as (server, address):
        pool = BlockingChannelPool()
        outcomes: list[Command | RayMQError | None] = []

        def ask() -> None:
            try:
                outcomes.append(pool.request(address, Command(SILENT), 30))
            except RayMQError as error:
                outcomes.append(error)

        threads = [threading.Thread(target=ask) for _ in range(CHANNELS_PER_ADDRESS + 2)]
        for thread in threads:
            thread.start()
        await asyncio.to_thread(poll_until, lambda: len(outcomes) >= 2, 5)
        assert outcomes == [None, None]
        assert len(server.connections) <= CHANNELS_PER_ADDRESS
        pool.close()
        await asyncio.to_thread(lambda: [thread.join(5) for thread in threads])
        assert len(outcomes) == CHANNELS_PER_ADDRESS + 2


async def test_channel_over_tls(tmp_path: Path) -> None:
    server_files, client_files = certificates(tmp_path)
    async with serving(HANDLERS, tls=server_context(server_files)) as (server, address):
        pool = BlockingChannelPool(client_context(client_files))
        for _ in range(3):
            answer = await asyncio.to_thread(pool.request, address, Command(ECHO, body=b"x" * 50_000), 5)
            assert answer is not None
            assert answer.body == b"x" * 50_000
        assert connections(pool) == len(server.connections) == 1
        pool.close()


def test_abandon_in_forked_child_keeps_connection() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    pool = BlockingChannelPool()
    channel = pool._take(f"127.0.0.1:{listener.getsockname()[1]}", 5)
    assert channel is not None
    pool._give_back(channel)
    far, _ = listener.accept()
    child = os.fork()
    if child == 0:
        pool.abandon()
        os._exit(connections(pool))
    assert os.waitpid(child, 0)[1] == 0
    assert channel.is_reusable
    far.setblocking(False)
    with pytest.raises(BlockingIOError):
        far.recv(1)
    pool.close()
    far.close()
    listener.close()
