"""The connection to one server whose answers are needed within a second; it is made anew in the background.

A pool's connections (`actors.wire.connection`) are patient: an attempt has 20 s, the next one may be two minutes away,
and one that has gone silent is believed for 10 s. A lease is over in two. So here an attempt has one second, the
longest pause is one second, and a connection that has been silent for a second since a question is dropped by the next
one. Whether who asked has waited does not matter.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from raymq.actors.backoff import Backoff
from raymq.actors.errors import BrokerUnavailable, RayMQError, Timeout
from raymq.actors.wire import moved
from raymq.actors.wire.connection import WireConnection
from raymq.actors.wire.frame import Command
from raymq.actors.wire.reader import make_scratch
from raymq.actors.wire.tls import RenewedContext

CONNECT_SECONDS: Final = 1.0
_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 1.0
#: So long after a question, with nothing heard since, a connection is made anew.
SILENT_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


class PromptChannel:
    """To the server at one address. Used on one event loop."""

    def __init__(
        self,
        address: str,
        tls: RenewedContext | None = None,
        *,
        silent_seconds: float = SILENT_SECONDS,
        waits_for_server: bool = True,
    ) -> None:
        """`waits_for_server`: while nobody listens there, a question waits for who may, until its time is up; else it
        fails at once.
        """
        self.address = address
        self._silent_seconds = silent_seconds
        self._tls = tls
        self._waits_for_server = waits_for_server
        self._connection: WireConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._backoff = Backoff(first=_FIRST_PAUSE_SECONDS, factor=2.0, cap=_LONGEST_PAUSE_SECONDS)
        #: Set while the last attempt to connect was refused.
        self._refused = asyncio.Event()
        #: How much had been heard on the connection, and when the first question was asked after that.
        self._heard = 0
        self._asked_at: float | None = None
        self._closed = False

    async def request(self, command: Command, timeout: float) -> Command:
        """The answer to a command.

        Raises:
            RayMQError: there is none within `timeout` seconds, or it carries an error.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        self._drop_if_silent(clock())
        connection = await self._connected(timeout)
        if self._asked_at is None or connection.heard != self._heard:
            self._heard, self._asked_at = connection.heard, clock()
        return await connection.request(command, max(deadline - clock(), 0.0))

    def close(self) -> None:
        """End it; whoever asks has no answer."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.close()

    def _drop_if_silent(self, now: float) -> None:
        connection = self._connection
        if connection is None or self._asked_at is None or connection.heard != self._heard:
            return
        if now - self._asked_at >= self._silent_seconds:
            connection.give_up()
            self._connection = None

    async def _connected(self, timeout: float) -> WireConnection:
        connection = self._connection
        if connection is None or not connection.is_open:
            if self._closed:
                raise Timeout(self.address, "the channel is closed")
            if self._connecting is None:
                # It goes on without who asked: the next one finds a connection.
                self._refused.clear()
                self._connecting = asyncio.get_running_loop().create_task(self._connect())
            await self._wait(self._connecting, timeout)
            connection = self._connection
        if connection is None or not connection.is_open:
            if self._refused.is_set():
                raise BrokerUnavailable(self.address, "nobody listens there")
            raise Timeout(self.address, "no connection")
        return connection

    async def _wait(self, connecting: asyncio.Task[None], timeout: float) -> None:
        if self._waits_for_server:
            await asyncio.wait([connecting], timeout=timeout)
            return
        refused = asyncio.get_running_loop().create_task(self._refused.wait())
        try:
            await asyncio.wait([connecting, refused], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            refused.cancel()

    async def _connect(self) -> None:
        """Try until there is a connection."""
        scratch = make_scratch()
        loop = asyncio.get_running_loop()
        try:
            while not self._closed:
                host, _, port = moved.now(self.address).rpartition(":")
                try:
                    async with asyncio.timeout(CONNECT_SECONDS):
                        _, self._connection = await loop.create_connection(
                            lambda: WireConnection(self.address, scratch),
                            host.strip("[]"),
                            int(port),
                            ssl=None if self._tls is None else self._tls.now(),
                        )
                except (OSError, TimeoutError, ValueError, OverflowError, RayMQError) as error:
                    _log.debug("no connection to %s: %s", self.address, error)
                    if isinstance(error, ConnectionRefusedError):
                        self._refused.set()
                    await asyncio.sleep(self._backoff.next_delay())
                    continue
                self._refused.clear()
                self._backoff.reset()
                self._asked_at = None
                return
        finally:
            self._connecting = None
