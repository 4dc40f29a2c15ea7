"""The connecting side: one multiplexed connection per address, requests matched to answers by opaque.

Everything here runs on one event loop. `ConnectionPool` keeps a connection per address, connects once for many waiters,
and backs off from an address that refuses (each attempt may take `CONNECT_SECONDS`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raymq.actors.core.backoff import Backoff
from raymq.actors.errors import BrokerUnavailable, ClientClosed, ConnectionLost, ProtocolError, Timeout
from raymq.actors.wire import faults, frame
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.frame import Command, FrameReader

#: An attempt to connect is given this long before it is called failed, unless the caller's budget ends first.
CONNECT_SECONDS = 20.0
_MAX_OPAQUE = 0x7FFFFFFF

PushHandler = Callable[["Connection", Command], None]


class Connection(asyncio.Protocol):
    """One open connection to a server."""

    def __init__(self, address: str, on_push: PushHandler | None = None) -> None:
        self.address = address
        self._on_push = on_push
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._opaque = 0
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def is_open(self) -> bool:
        """Whether requests can be written."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._writable.set()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ConnectionLost(self.address, f"connection lost: {exc or 'closed by the peer'}"))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        try:
            for command in self._reader.feed(data):
                if command.is_response:
                    future = self._waiting.pop(command.opaque, None)
                    if future is not None and not future.done():
                        future.set_result(command)
                elif self._on_push is not None:
                    self._on_push(self, command)
        except ProtocolError:
            self.close()

    async def request(self, command: Command, timeout: float) -> Command:
        """Send `command` and return its answer if that is SUCCESS.

        Raises:
            Timeout: no answer within `timeout` seconds; the outcome is unknown.
            ConnectionLost: the connection broke before the answer; the outcome is unknown.
            BrokerUnavailable: the connection was closed already; nothing was sent.
            RayMQError: the error that the answer carries.
        """
        self._opaque = self._opaque % _MAX_OPAQUE + 1
        command.opaque = self._opaque
        head = frame.encode(command)
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout):
                await self._writable.wait()
                if self._transport is None or self._transport.is_closing():
                    raise BrokerUnavailable(self.address, "connection is closed")
                self._waiting[command.opaque] = future
                self._transport.writelines([head, command.body] if len(command.body) else [head])
                answer = await future
        except TimeoutError as error:
            raise Timeout(self.address, f"no answer within {timeout:.3g} s") from error
        finally:
            self._waiting.pop(command.opaque, None)
        if answer.code != ResponseCode.SUCCESS:
            raise faults.to_error(answer)
        return answer

    def close(self) -> None:
        """Close; requests under way fail with ConnectionLost."""
        if self._transport is not None:
            self._transport.close()


class ConnectionPool:
    """One connection per address. Made and used on one loop; `close()` ends it for good."""

    def __init__(self, on_push: PushHandler | None = None) -> None:
        self._on_push = on_push
        self._open: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self._backoff: dict[str, Backoff] = {}
        self._not_before: dict[str, float] = {}
        self._closed = False
        #: This machine's address as a server saw it last; what born hosts say.
        self.local_host = "127.0.0.1"

    async def get(self, address: str, timeout: float = CONNECT_SECONDS) -> Connection:
        """The open connection to "host:port", made now if need be.

        Raises:
            BrokerUnavailable: it refuses, or refused so short ago that no new attempt is due; nothing was sent.
            ClientClosed: the pool was closed.
        """
        if self._closed:
            raise ClientClosed("the client is closed")
        connection = self._open.get(address)
        if connection is not None and connection.is_open:
            return connection
        task = self._opening.get(address)
        if task is None:
            wait = self._not_before.get(address, 0.0) - asyncio.get_running_loop().time()
            if wait > 0:
                raise BrokerUnavailable(address, f"refused connections; next attempt in {wait:.1f} s")
            task = asyncio.get_running_loop().create_task(self._connect(address))
            self._opening[address] = task
            task.add_done_callback(lambda done: self._connected(address, done))
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(task)
        except TimeoutError as error:
            raise BrokerUnavailable(address, f"no connection within {timeout:.3g} s") from error

    async def request(self, address: str, command: Command, timeout: float) -> Command:
        """`get` and `Connection.request` within one budget of `timeout` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        connection = await self.get(address, timeout)
        return await connection.request(command, max(0.0, deadline - loop.time()))

    async def close(self) -> None:
        """Close all connections; every later `get` raises ClientClosed."""
        self._closed = True
        for task in list(self._opening.values()):
            task.cancel()
        for connection in self._open.values():
            connection.close()
        await asyncio.sleep(0)

    def _connected(self, address: str, task: asyncio.Task[Connection]) -> None:
        self._opening.pop(address, None)
        if not task.cancelled():
            task.exception()  # every waiter may have given up: somebody has to look, or asyncio complains

    async def _connect(self, address: str) -> Connection:
        loop = asyncio.get_running_loop()
        host, _, port = address.rpartition(":")
        backoff = self._backoff.setdefault(address, Backoff())
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                transport, connection = await loop.create_connection(
                    lambda: Connection(address, self._on_push), host.strip("[]"), int(port)
                )
        except (OSError, TimeoutError, ValueError) as error:
            self._not_before[address] = loop.time() + backoff.next_delay()
            raise BrokerUnavailable(address, f"cannot connect: {error}") from error
        backoff.reset()
        self.local_host = str(transport.get_extra_info("sockname")[0])
        self._open[address] = connection
        return connection
