"""What an accepted connection needs of its server, and the protocol of inline handlers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from raymq.actors.wire.frame import Command
from raymq.actors.wire.request_latency import RequestLatency
from raymq.actors.wire.request_memory_budget import RequestMemoryBudget
from raymq.actors.wire.server_limits import ServerLimits
from raymq.actors.wire.sync_callback_future import SyncCallbackFuture


class InlineHandler(Protocol):
    """A handler that can answer most bare requests at once, without a task.

    A connection uses `try_answer_inline` for a bare request that arrives alone.
    """

    def __call__(self, connection: Any, request: Command) -> Command | Awaitable[Command | None] | None:
        """Serve a request as any handler does."""

    def try_answer_inline(self, body: memoryview, answer: Callable[[bytes], None]) -> bool | SyncCallbackFuture[bytes]:
        """Serve a request and pass the answer's body to `answer` once it is known.

        After that call the method may do further work that the client does not have to wait for. An exception is sent
        as the answer. If the method returns False it has done nothing, and the request is served by `__call__`.

        If the answer depends on other events, the method returns a future of the body instead and does not call
        `answer`.

        `body` is valid during the call only.
        """


class ServerInterface(Protocol):
    """The parts of a server that its connections use, such as limits and shared state."""

    handlers: Mapping[int, Callable[..., Any]]
    authorize: Callable[[Any, Command], None] | None
    draining: bool
    limits: ServerLimits
    #: Measures the requests; None: they are not measured.
    latency: RequestLatency | None
    loop: asyncio.AbstractEventLoop
    room: RequestMemoryBudget
    #: The read buffer that all connections share, one after the other.
    scratch: memoryview
    connections: set[Any]
    #: Connections that are not read from until memory is free.
    waiting_for_memory: dict[Any, None]
    #: How many connections were refused because a limit was reached.
    refused_connections: int
    #: True when the server has stopped: it serves no connection any more.
    has_stopped: bool

    def has_capacity(self, accepted: socket.socket | None) -> bool:
        """Return True if one more connection may stay open."""

    def left(self, connection: Any) -> None:
        """Remove a connection that has ended."""

    def release_memory(self, count: int) -> None:
        """Release `count` bytes that an answered request held."""

    def wake_waiting(self) -> None:
        """Schedule the connections that wait for memory to check again."""
