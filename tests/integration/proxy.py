"""A TCP proxy between a client and a broker of the same test, which loses answers and cuts connections."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from dataclasses import dataclass, field

_LENGTH = struct.Struct(">i")


@dataclass
class LossyProxy:
    """Forwards requests; drops the share `drop` of the answers, and for the share `cut` closes the connection.

    Use it on the event loop on which `start` was awaited. It counts dropped answers and closed connections.
    """

    target: tuple[str, int]
    drop: float = 0.0
    cut: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    dropped: int = 0
    hung_up: int = 0
    address: str = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._tasks: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.close()
            return
        ways = [
            asyncio.ensure_future(self._requests(reader, far_writer)),
            asyncio.ensure_future(self._answers(far_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # the proxy stops
        finally:
            for way in ways:
                way.cancel()
            far_writer.close()
            writer.close()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                length = await reader.readexactly(_LENGTH.size)
                frame = length + await reader.readexactly(_LENGTH.unpack(length)[0])
                fate = self.rng.random()
                if fate < self.drop:
                    self.dropped += 1
                elif fate < self.drop + self.cut:
                    self.hung_up += 1
                    return
                else:
                    writer.write(frame)
                    await writer.drain()
