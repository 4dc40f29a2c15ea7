"""What an accepted connection needs of the server that it belongs to, and of a handler that answers at once."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from raymq.actors.wire.frame import Command
from raymq.actors.wire.limits import ServerLimits
from raymq.actors.wire.prompt_future import PromptFuture
from raymq.actors.wire.room import RequestRoom


class PromptHandler(Protocol):
    """A handler that can answer most bare requests at once: where such a request comes alone, that is its whole way."""

    def __call__(self, connection: Any, request: Command) -> Command | Awaitable[Command | None] | None:
        """As any handler."""

    def promptly(self, body: memoryview, answer: Callable[[bytes], None]) -> bool | PromptFuture[bytes]:
        """Serve a request, and say the answer's body by `answer` as soon as it is known; what the client need not
        wait for may follow. Raises what is answered instead. False: nothing was done, take the usual way.

        Where others have to be waited for it returns the future body instead, and does not call `answer`.

        `body` is valid during the call only.
        """


class Host(Protocol):
    """What a connection needs of its server: what all connections share, and who waits for room."""

    handlers: Mapping[int, Callable[..., Any]]
    authorize: Callable[[Any, Command], None] | None
    draining: bool
    limits: ServerLimits
    loop: asyncio.AbstractEventLoop
    room: RequestRoom
    #: Where all connections read into, one after the other.
    scratch: memoryview
    connections: set[Any]
    #: Those that are not read from until there is room.
    waiting_for_room: dict[Any, None]
    #: How many connections were closed because there were too many.
    refused_connections: int
    #: No connection is served any more.
    has_stopped: bool

    def has_place(self, accepted: socket.socket | None) -> bool:
        """Whether one more connection may stay."""

    def left(self, connection: Any) -> None:
        """A connection is gone."""

    def give_back(self, count: int) -> None:
        """A request that held so many bytes is answered."""

    def wake_waiting(self) -> None:
        """Have those that wait for room look again soon."""
