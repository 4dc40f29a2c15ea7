"""The requests that a server sends over a client's connection, and the client's answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raymq.actors.errors import ConnectionLost, Timeout
from raymq.actors.wire.frame import MAX_OPAQUE, Command
from raymq.storage.errors import no_answer_within


class ServerRequests:
    """The server's requests on one connection. Used on the server's loop only."""

    def __init__(self) -> None:
        self._opaque = 0
        self._waiting: dict[int, asyncio.Future[Command]] = {}

    def number(self, command: Command) -> None:
        """Assign the next opaque to a request."""
        self._opaque = command.opaque = self._opaque % MAX_OPAQUE + 1

    async def ask(self, command: Command, send: Callable[[Command], None], peer: str, timeout: float) -> Command:
        """Send a request and return the client's answer, whatever its code.

        Raises:
            Timeout: no answer within `timeout` seconds.
            ConnectionLost: the connection was lost before the answer.
        """
        self.number(command)
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._waiting[command.opaque] = future
        try:
            send(command)
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError as error:
            raise Timeout(peer, no_answer_within(timeout)) from error
        finally:
            del self._waiting[command.opaque]

    def answered(self, answer: Command) -> None:
        """Complete the request that an answer belongs to; ignore an answer to no open request."""
        future = self._waiting.get(answer.opaque)
        if future is not None and not future.done():
            future.set_result(answer)

    def lost(self, peer: str) -> None:
        """Fail all open requests with ConnectionLost, because the client has disconnected."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionLost(peer, "the client has disconnected"))
