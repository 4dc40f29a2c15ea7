"""A server with a few handlers and a byte-level client, for tests and measurements of the transport."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from raymq.actors.wire import frame
from raymq.actors.wire.frame import Command
from raymq.actors.wire.frame_reader import FrameReader
from raymq.actors.wire.server import Server, bind
from raymq.actors.wire.server_connection import Authorize, Handler
from raymq.actors.wire.server_limits import ServerLimits


@asynccontextmanager
async def serving(
    handlers: Mapping[int, Handler],
    *,
    limits: ServerLimits | None = None,
    authorize: Authorize | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[Server, str]]:
    """Yield a server and its "host:port", and stop it at the end."""
    server = Server(handlers, limits=limits, authorize=authorize, tls=tls)
    bound = bind("127.0.0.1", 0)
    await server.start(bound)
    try:
        yield server, f"127.0.0.1:{bound.getsockname()[1]}"
    finally:
        await server.stop()


def encode_frame(command: Command) -> bytes:
    """Return the whole frame of a command."""
    return frame.encode(command) + b"".join((command.body, *command.pieces))


class Peer:
    """A client that sends exactly the given commands or bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._frames = FrameReader()
        self._received: list[Command] = []

    @classmethod
    async def connect(cls, address: str, tls: ssl.SSLContext | None = None) -> Peer:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), ssl=tls))

    def say(self, *commands: Command) -> None:
        """Send commands without waiting."""
        self.writer.write(b"".join(map(encode_frame, commands)))

    async def hear(self, timeout: float = 5.0) -> Command:
        """Return the next command from the server; EOFError if it closes instead."""
        async with asyncio.timeout(timeout):
            while not self._received:
                data = await self.reader.read(1 << 16)
                if not data:
                    raise EOFError
                self._received += self._frames.feed(data)
        return self._received.pop(0)

    async def closed(self, timeout: float = 5.0) -> bool:
        """Return whether the server closes the connection without further data."""
        try:
            async with asyncio.timeout(timeout):
                return await self.reader.read(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.writer.close()
