"""A process's connection to a cluster: one background event loop, one socket per broker, the routes.

Every client (Producer, PushConsumer, ...) is given one and shares what it holds. Nothing in it needs Ray: a cluster
that is reached through Ray only brings the name servers' addresses and a namespace for the shared producer.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import weakref
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from raymq.actors.errors import ClientClosed, InvalidInput
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.routing import Routes
from raymq.actors.wire.connection import Connection as WireConnection
from raymq.actors.wire.connection import ConnectionPool
from raymq.actors.wire.frame import Command
from raymq.client.forking import renew_in_child

_T = TypeVar("_T")
PushListener = Callable[[WireConnection, Command], None]


class Closable(Protocol):
    """A client that its connection closes with itself."""

    def close(self, timeout: float = 10.0) -> None:
        """Release everything; may be called twice."""


@dataclass(frozen=True, slots=True)
class _Home:
    """What belongs to one process."""

    thread: EventLoopThread
    pool: ConnectionPool
    routes: Routes


class Connection:
    """Thread-safe. Closes its clients, its sockets and its thread with `close()`, at the latest at interpreter exit.

    It pickles to its addresses and connects anew where it is unpickled, as in a Ray or Spark task.
    """

    def __init__(self, name_servers: Sequence[str], *, namespace: str | None = None) -> None:
        """Connects lazily. `namespace` is the cluster's Ray namespace, None where Ray is out of reach.

        Raises:
            InvalidInput: an address is not "host:port".
        """
        self.name_servers = [_checked_address(address) for address in name_servers]
        if not self.name_servers:
            raise InvalidInput("name_servers", "at least one address", list(name_servers))
        self.namespace = namespace
        self._clients: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._push_listeners: list[PushListener] = []
        self._closed = False
        self._home  # noqa: B018 - made here, where no other thread can make a second one
        renew_in_child(self, Connection._begin_anew)
        atexit.register(self.close)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The background event loop, which owns sockets and routes."""
        return self._home.thread.loop

    @property
    def pool(self) -> ConnectionPool:
        """One socket per address; used on `loop` only."""
        return self._home.pool

    @property
    def routes(self) -> Routes:
        """The topics' routes; used on `loop` only."""
        return self._home.routes

    @property
    def reaches_ray(self) -> bool:
        """Whether the cluster's actors can be called, too."""
        return self.namespace is not None

    def __reduce__(self) -> tuple[Any, ...]:
        return _reconnect, (self.name_servers, self.namespace)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, coroutine: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Run a coroutine on the background loop and wait for it. Raises ClientClosed after `close()`."""
        if self._closed:
            coroutine.close()
            raise ClientClosed("the connection to the cluster is closed")
        return self._home.thread.run(coroutine, timeout)

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine on the background loop. Raises ClientClosed after `close()`."""
        if self._closed:
            coroutine.close()
            raise ClientClosed("the connection to the cluster is closed")
        return self._home.thread.submit(coroutine)

    def adopt(self, client: Closable) -> None:
        """Close `client` with this connection."""
        self._clients.add(client)

    def listen(self, listener: PushListener) -> None:
        """Call `listener`, on the loop, with requests that brokers send by themselves."""
        self._push_listeners.append(listener)

    def unlisten(self, listener: PushListener) -> None:
        """The reverse of `listen`."""
        with contextlib.suppress(ValueError):
            self._push_listeners.remove(listener)

    def close(self) -> None:
        """Close the clients, then the sockets. The cluster goes on."""
        if self._closed:
            return
        for client in list(self._clients):
            client.close()
        self._closed = True
        atexit.unregister(self.close)
        if self._home.thread.is_running:
            self._home.thread.run(self.pool.close(), 5.0)
            self._home.thread.stop()

    @cached_property
    def _home(self) -> _Home:
        thread = EventLoopThread("raymq-client")

        async def open_pool() -> _Home:
            pool = ConnectionPool(self._pushed)
            return _Home(thread, pool, Routes(pool, self.name_servers))

        return thread.run(open_pool())

    def _begin_anew(self) -> None:
        """In a forked child: thread and loop are the parent's, and kept: closing them would disturb its sockets."""
        self._parents_home = self.__dict__.pop("_home", None)

    def _pushed(self, connection: WireConnection, command: Command) -> None:
        for listener in list(self._push_listeners):
            listener(connection, command)


def _reconnect(name_servers: list[str], namespace: str | None) -> Connection:
    return Connection(name_servers, namespace=namespace)


def _checked_address(address: str) -> str:
    host, _, port = address.strip().rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise InvalidInput("name_servers", '"host:port"', address)
    return address.strip()
