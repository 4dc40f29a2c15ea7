"""A TCP proxy between one client and one broker that is cut and mended, for both ends or for one that does not know."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field


@dataclass
class Cable:
    """Passes bytes on until it is cut. Used on the event loop on which `start` was awaited."""

    target: tuple[str, int]
    address: str = ""
    _is_cut: bool = False
    _near: set[asyncio.StreamWriter] = field(default_factory=set)
    _far: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _frozen: set[asyncio.StreamWriter] = field(default_factory=set)
    _freezes: bool = False

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.cut()

    async def cut(self, *, tell_near: bool = True, tell_far: bool = True) -> None:
        """The client's end (near) and the server's close; who is not told has a connection on which nothing comes."""
        self._is_cut = True
        for end in [*(self._far if tell_far else ()), *(self._near if tell_near else ())]:
            end.transport.abort()

    async def mend(self) -> None:
        """Connections can be made again; those of before stay dead."""
        self._is_cut = False
        for end in self._near:
            end.transport.abort()

    def freeze(self, *, new_ones: bool = False) -> None:
        """The connections of now stay open, and nothing passes them any more; nor do new ones, or those work."""
        self._frozen = set(self._near) | set(self._far)
        self._freezes = new_ones

    def thaw(self) -> None:
        """What passes from now on arrives."""
        self._frozen, self._freezes = set(), False

    async def _connected(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._is_cut:
            near.transport.abort()
            return
        far_reader, far = await asyncio.open_connection(*self.target)
        self._near.add(near)
        self._far.add(far)
        try:
            await asyncio.gather(self._pass_on(reader, far), self._pass_on(far_reader, near))
        finally:
            self._near.discard(near)
            self._far.discard(far)
            near.transport.abort()
            far.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Ends with its connection; while the cable is cut, what comes is lost."""
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if not self._is_cut and not self._freezes and writer not in self._frozen:
                    writer.write(data)
                    await writer.drain()
        if not self._is_cut:
            writer.close()
