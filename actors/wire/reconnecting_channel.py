"""A connection for requests that need an answer within a second, re-established in the background.

It leads to one server. The connections of a pool (`actors.wire.connection_pool`) have long timeouts: an attempt to
connect has 20 s, the next attempt may be two minutes later, and a connection without incoming bytes is kept for 10 s. A
lease expires after two seconds. So here an attempt has one second, the longest pause between attempts is one second,
and a connection on which nothing has arrived for a second since a request is dropped by the next request. This is so
whether or not the caller waited for its answer.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from raymq.actors.backoff import Backoff
from raymq.actors.errors import BrokerUnavailable, RayMQError, Timeout
from raymq.actors.wire import address_resolution
from raymq.actors.wire.connection_pool import WireConnection
from raymq.actors.wire.frame import Command
from raymq.actors.wire.frame_reader import make_scratch
from raymq.actors.wire.tls import ReloadingContext

CONNECT_SECONDS: Final = 1.0
_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 1.0
#: A connection that receives nothing for so long after a request is replaced.
SILENT_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


class ReconnectingChannel:
    """A channel to the server at one address. Used on one event loop."""

    def __init__(
        self,
        address: str,
        tls: ReloadingContext | None = None,
        *,
        silent_seconds: float = SILENT_SECONDS,
        waits_for_server: bool = True,
    ) -> None:
        """Create a channel; the first request connects it.

        Args:
            waits_for_server: whether a request waits, up to its timeout, for a server to listen at the address;
                otherwise it fails at once if the connection is refused.
        """
        self.address = address
        self._silent_seconds = silent_seconds
        self._tls = tls
        self._waits_for_server = waits_for_server
        self._connection: WireConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._backoff = Backoff(first=_FIRST_PAUSE_SECONDS, factor=2.0, cap=_LONGEST_PAUSE_SECONDS)
        #: Set while the last attempt to connect was refused by the host.
        self._refused = asyncio.Event()
        #: The connection's counter of arrivals at the first request since the last arrival, and that request's time.
        self._receive_count = 0
        self._asked_at: float | None = None
        self._closed = False

    async def request(self, command: Command, timeout: float) -> Command:
        """Send a command and return its answer.

        Raises:
            RayMQError: no answer within `timeout` seconds, or the answer carries an error.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        self._drop_if_silent(clock())
        connection = await self._connected(timeout)
        if self._asked_at is None or connection.receive_count != self._receive_count:
            self._receive_count, self._asked_at = connection.receive_count, clock()
        return await connection.request(command, max(deadline - clock(), 0.0))

    def close(self) -> None:
        """Close the channel; requests under way fail."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.close()

    def _drop_if_silent(self, now: float) -> None:
        connection = self._connection
        if connection is None or self._asked_at is None or connection.receive_count != self._receive_count:
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
                # The attempt continues after the caller's timeout, so that the next caller finds a connection.
                self._refused.clear()
                self._connecting = asyncio.get_running_loop().create_task(self._connect())
            await self._wait(self._connecting, timeout)
            connection = self._connection
        if connection is None or not connection.is_open:
            if self._refused.is_set():
                raise BrokerUnavailable(self.address, "no process listens there")
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
        """Try to connect until it succeeds or the channel is closed."""
        scratch = make_scratch()
        loop = asyncio.get_running_loop()
        try:
            while not self._closed:
                host, _, port = address_resolution.now(self.address).rpartition(":")
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
