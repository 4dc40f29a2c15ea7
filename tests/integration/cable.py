"""A TCP proxy between a client and a broker that can be cut and mended, for both ends or for one of them."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field


@dataclass
class Cable:
    """Forwards bytes until it is cut. Use it on the event loop on which `start` was awaited."""

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
        """Close the client's end (near) and the server's (far); an end that is not closed receives nothing any more."""
        self._is_cut = True
        for end in [*(self._far if tell_far else ()), *(self._near if tell_near else ())]:
            end.transport.abort()

    async def mend(self) -> None:
        """Accept new connections again; the earlier ones stay dead."""
        self._is_cut = False
        for end in self._near:
            end.transport.abort()

    def freeze(self, *, new_ones: bool = False) -> None:
        """Keep the present connections open and drop all their bytes; with `new_ones` those of later ones too."""
        self._frozen = set(self._near) | set(self._far)
        self._freezes = new_ones

    def thaw(self) -> None:
        """Forward bytes again from now on."""
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
        """Forward bytes until the connection ends; drop them while the cable is cut."""
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if not self._is_cut and not self._freezes and writer not in self._frozen:
                    writer.write(data)
                    await writer.drain()
        if not self._is_cut:
            writer.close()
