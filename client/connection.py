"""Connect a process to a cluster with one background event loop.

A connection has one socket per broker and a cache of the routes. Every client (Producer, PushConsumer, ...) takes a
connection and shares its event loop, sockets and routes with the other clients. Brokers are reached over sockets. A
connection that also reaches Ray calls a broker's actor where the network does not reach the broker's socket.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import sys
import threading
import uuid
import weakref
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar
from weakref import WeakMethod

from raymq.actors.errors import ClientClosed, InvalidInput
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.protocol import Tls
from raymq.actors.route_cache import RouteCache
from raymq.actors.wire.blocking_channel import BlockingChannelPool
from raymq.actors.wire.connection_pool import ConnectionPool, WireConnection
from raymq.actors.wire.frame import MESSAGE_FRAME_BYTES, Command
from raymq.actors.wire.tls import client_context
from raymq.client import arguments
from raymq.client.callback_executor import CallbackExecutor
from raymq.client.cluster_changes import ClusterChanges
from raymq.client.fork_hooks import keep_for_parent, register_child_reset
from raymq.client.metrics_exporter import EXPORTER
from raymq.client.worker_exit import call_at_worker_exit
from raymq.storage.closeable import Closeable

if TYPE_CHECKING:
    from raymq.client.missing_topics import MissingTopics
    from raymq.client.tracing.message_tracer import MessageTracer

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
#: Receives a request that a broker sent on its own; returns the answer, or None if it is one-way or for another
#: listener.
PushListener = Callable[[WireConnection, Command], Command | None]

#: The time for a listener call that closed its connection to end and to be committed.
_LAST_CALLS_SECONDS = 60.0
#: The time for all clients to close with their connection, and again for all producers after them.
_CLOSE_SECONDS = 10.0
#: The time for the callbacks of answered sends when the connection is closed.
_CALLBACK_SECONDS = 5.0


class CloseableClient(Protocol):
    """A client that its connection closes with itself."""

    #: Whether other clients may send with it until they are closed.
    SENDS: ClassVar[bool]

    def close(self, timeout: float = 10.0) -> None:
        """Release all resources; may be called twice."""

    def begin_close(self, timeout: float) -> Callable[[], None]:
        """Start to close, and return a function that waits for the end of it."""


@dataclass(slots=True, eq=False)
class _ConnectionResources:
    """The sockets and the loop thread, which exist independently of the connection object.

    They are released when the connection is garbage-collected without `close`.
    """

    pool: ConnectionPool
    channels: BlockingChannelPool
    at_exit: _AtExit
    loop: EventLoopThread | None = None

    def release(self) -> None:
        """Close the sockets and the loop after the connection was garbage-collected.

        No request is running then. Non-blocking: it may be called on any thread.
        """
        atexit.unregister(self.at_exit)
        self.channels.close()
        if self.loop is not None and self.loop.is_running:
            with contextlib.suppress(RuntimeError):
                self.loop.submit(self._end(self.loop))

    async def _end(self, loop: EventLoopThread) -> None:
        await self.pool.close()
        loop.stop()


class _AtExit:
    """A function that closes a connection at interpreter exit, if it still exists then."""

    def __init__(self, mq: Connection) -> None:
        self._mq = weakref.ref(mq)

    def __call__(self) -> None:
        mq = self._mq()
        if mq is not None:
            mq.close()


class Connection(Closeable):
    """A process's connection to a cluster, which its clients share. Thread-safe.

    `close()` closes its clients, its sockets and its thread. It is called at the end of the process at the latest, also
    in a worker of `multiprocessing` or of a `ProcessPoolExecutor`. If neither the program nor a running request refers
    to the connection any more, its sockets and its thread are closed then.

    It pickles to its addresses and connects again where it is unpickled, as in a Ray or Spark task. After a fork the
    child opens sockets and a thread of its own at its first use, and the parent keeps its own; consumers that run in
    the background stay with the parent.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        namespace: str | None = None,
        tls: Tls | None = None,
        tracing: bool = False,
    ) -> None:
        """Create the connection; sockets are opened at the first use.

        Args:
            name_servers: "host:port", several as a list or separated by ";" or ",".
            namespace: the cluster's namespace in Ray; None where Ray cannot be reached.
            tls: the certificates; None: no TLS.
            tracing: make OpenTelemetry spans of sends, receives, listener calls, retries and redrives, and pass the
                trace context on in the messages. It needs the extra `otel`.

        Raises:
            InvalidInput: an address is not "host:port", or a file of `tls` cannot be used; or gevent has patched
                modules that the background event loop needs; or `tracing` is set without OpenTelemetry.
        """
        _check_not_patched()
        self.name_servers = arguments.addresses("name_servers", name_servers)
        self.namespace = namespace
        self.tls = tls
        context = None if tls is None else client_context(tls)
        # Weak references: the loop's thread owns the sockets, and must not keep the connection alive.
        this, push, call = weakref.ref(self), WeakMethod(self._pushed), WeakMethod(self._through_the_actor)

        def name_of(address: str) -> str | None:
            mq = this()
            return None if mq is None else mq.routes.name_at(address)

        def pushed(connection: WireConnection, command: Command) -> Command | None:
            listeners = push()
            return None if listeners is None else listeners(connection, command)

        async def through_the_actor(address: str, command: Command, timeout: float) -> Command:
            door = call()
            if door is None:
                raise ClientClosed("the connection to the cluster was closed")
            return await door(address, command, timeout)

        #: Sockets for threads that wait for an answer themselves.
        self.channels = BlockingChannelPool(context, name_of)
        self.pool = ConnectionPool(
            pushed,
            tls=context,
            second_door=None if namespace is None else through_the_actor,
            name_of=name_of,
            max_frame_bytes=MESSAGE_FRAME_BYTES,
        )
        #: Makes the spans of the clients; None: nothing is traced.
        self.tracer = _make_tracer(self.pool, namespace) if check_tracing(tracing) else None
        self.routes = RouteCache(self.pool, self.name_servers)
        self._missing_topics: MissingTopics | None = None
        self._clients: weakref.WeakSet[CloseableClient] = weakref.WeakSet()
        #: Clients that work in the background and are kept alive although the program may hold no reference to them.
        self._busy: set[CloseableClient] = set()
        self._push_listeners: list[PushListener] = []
        self._closed = False
        #: Where users' callbacks run.
        self.callbacks = CallbackExecutor()
        #: Reentrant, both: a signal handler may use the connection on the thread that it interrupted here.
        self._starting = threading.RLock()
        self._ending = threading.RLock()
        self._loop: EventLoopThread | None = None
        self._session = uuid.uuid4().hex
        self._at_exit = _AtExit(self)
        atexit.register(self._at_exit)
        self._held = _ConnectionResources(self.pool, self.channels, self._at_exit)
        weakref.finalize(self, self._held.release).atexit = False  # at interpreter exit `_AtExit` closes it instead
        _of_this_process.add(self)
        register_child_reset(
            self, type(self).reset_after_fork, before_users=True
        )  # the clients that continue in the child are adopted again after it

    def __repr__(self) -> str:
        """Return one line with the cluster and the state, open or closed."""
        namespace = "" if self.namespace is None else f"namespace={self.namespace!r}, "
        tls = "" if self.tls is None else ", tls"
        state = "closed" if self._closed else "open"
        return f"{type(self).__name__}({namespace}name_servers={';'.join(self.name_servers)!r}{tls}, {state})"

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the background event loop, which owns the sockets and the routes."""
        return self._background().loop

    @property
    def loop_thread(self) -> EventLoopThread | None:
        """Return the thread of the background event loop; None before its first use."""
        return self._loop

    @property
    def is_on_loop(self) -> bool:
        """Return True on the background loop's own thread, which must not block."""
        loop = self._loop
        return loop is not None and loop.thread_id == threading.get_ident()

    @property
    def reaches_ray(self) -> bool:
        """Return True if the cluster's actors can be called, too."""
        return self.namespace is not None

    @property
    def missing_topics(self) -> MissingTopics:
        """Return the poller for missing topics that consumers wait for.

        For callers on the background loop.
        """
        if self._missing_topics is None:
            from raymq.client.missing_topics import MissingTopics

            self._missing_topics = MissingTopics(self.routes)
        return self._missing_topics

    def cluster_changes(self) -> ClusterChanges:
        """Return the object that starts and stops brokers.

        Raise InvalidInput if the cluster's actors cannot be called.
        """
        raise InvalidInput(
            "mq",
            "a connection that reaches the cluster's Ray (cluster.connect(namespace=...)): it starts and ends actors",
            ";".join(self.name_servers),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _reconnect, (self.name_servers, self.namespace, self.tls, self.tracer is not None)

    def run(self, coroutine: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Run a coroutine on the background loop and wait for its result.

        Raise ClientClosed after `close()`.
        """
        self._check_open(coroutine)
        try:
            return self._background().run(coroutine, timeout)
        except (CancelledError, RuntimeError):
            if self._closed:  # closed in the meantime, by another thread or at the end of the program
                raise ClientClosed("the connection to the cluster was closed") from None
            raise

    async def arun(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Await a coroutine on the background loop, from any event loop.

        If the caller is cancelled, so is the coroutine. Raise ClientClosed after `close()`.
        """
        if asyncio.get_running_loop() is self.loop:
            return await coroutine
        try:
            return await asyncio.wrap_future(self.submit(coroutine))
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._closed and (caller is None or not caller.cancelling()):
                raise ClientClosed("the connection to the cluster was closed") from None
            raise

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine on the background loop and return its future.

        Raise ClientClosed after `close()`.
        """
        self._check_open(coroutine)
        try:
            return self._background().submit(coroutine)
        except RuntimeError:
            if self._closed:  # closed in the meantime, by another thread or by a signal handler
                raise ClientClosed("the connection to the cluster was closed") from None
            raise

    def start(self, coroutine: Coroutine[Any, Any, _T], done: Callable[[asyncio.Task[_T]], object]) -> None:
        """Run a coroutine on the background loop, and call `done` there with its ended task.

        Raise ClientClosed after `close()`.
        """
        self._check_open(coroutine)
        try:
            self._background().start(coroutine, done)
        except RuntimeError:
            if self._closed:  # closed in the meantime, by another thread or by a signal handler
                raise ClientClosed("the connection to the cluster was closed") from None
            raise

    def wait(self, working: Future[_T], timeout: float | None = None) -> _T:
        """Return the result of a future that `submit` returned.

        After a time-out the coroutine goes on. Raise ClientClosed after `close()`, and RuntimeError on the loop's own
        thread.
        """
        if self.is_on_loop and not working.done():
            raise RuntimeError("a blocking call on the event loop's own thread would wait for itself")
        try:
            return working.result(timeout)
        except CancelledError:
            if self._closed:
                raise ClientClosed("the connection to the cluster was closed") from None
            raise

    @property
    def run_on_loop_thread(self) -> Callable[[Callable[[], None]], bool]:
        """Return `EventLoopThread.run_on_loop_thread` of the background loop.

        For callers on that loop.
        """
        return self._background().run_on_loop_thread

    def adopt(self, client: CloseableClient) -> None:
        """Close `client` together with this connection.

        The connection keeps only a weak reference: a client that was garbage-collected before is not closed.
        """
        self._clients.add(client)

    def retain(self, client: CloseableClient) -> None:
        """Keep an adopted `client` alive until `release`.

        For clients that work in the background and therefore have to be closed.
        """
        self._busy.add(client)

    def release(self, client: CloseableClient) -> None:
        """Undo `retain`: keep `client` alive no longer."""
        self._busy.discard(client)

    def listen(self, listener: PushListener) -> None:
        """Call `listener`, on the loop, for each request that a broker sends on its own."""
        self._push_listeners.append(listener)

    def unlisten(self, listener: PushListener) -> None:
        """Undo `listen`: call `listener` no longer."""
        with contextlib.suppress(ValueError):
            self._push_listeners.remove(listener)

    def close(self) -> None:
        """Close the clients, then the sockets. The cluster keeps running.

        Called inside the listener of one of its consumers, it returns at once, like `PushConsumer.shutdown`: the
        running listener call ends as usual, its result counts, and the connection is closed after it on another thread.
        """
        if self._closed:
            return
        clients = list(self._clients)
        calling: list[Any] = [client for client in clients if getattr(client, "is_calling", False)]
        if calling:
            for consumer in calling:
                consumer.close()  # returns at once
            # The other consumers are not waited for either: their listeners may be calling `close`, too.
            threading.Thread(target=self._close_behind, args=(clients, calling), name="raymq-close").start()
        else:
            self._close_clients(clients)

    def _close_behind(self, clients: list[CloseableClient], calling: list[Any]) -> None:
        """Close the clients after the consumers whose listeners are running have ended."""
        for consumer in calling:
            consumer.wait_for_end(_LAST_CALLS_SECONDS)
        self._close_clients(clients)

    def _close_clients(self, clients: list[CloseableClient]) -> None:
        """Close all clients at the same time, whichever of them fail, and then the connection.

        Producers are closed after the others, so that messages sent by a listener's last call still arrive.
        """
        with ExitStack() as at_last:
            at_last.callback(self._close)
            at_last.callback(_close_together, [client for client in clients if client.SENDS])
            _close_together([client for client in clients if not client.SENDS])

    def _close(self) -> None:
        with self._ending:  # of several concurrent calls one closes it, and all return when it is closed
            if self._closed:
                return
            self._closed = True
            self.callbacks.close(_CALLBACK_SECONDS)
            self.channels.close()
            atexit.unregister(self._at_exit)
            if self._loop is not None and self._loop.is_running:
                with contextlib.suppress(TimeoutError):  # `stop` ends what is left
                    self._loop.run(self.pool.close(), 5.0)
                self._loop.stop()
            EXPORTER.closed(self)

    async def aclose(self) -> None:
        """`close` for asyncio code."""
        await asyncio.to_thread(self.close)

    def reset_after_fork(self) -> None:
        """Reset the connection in a child process after a fork.

        Only the forking thread exists in the child, and the open sockets belong to the parent. Clients that continue in
        the child call `adopt` again. The cluster's actors cannot be called from the child.
        """
        self.namespace = None
        self._starting = threading.RLock()
        self._ending = threading.RLock()
        if self._loop is not None:
            keep_for_parent(self._loop)  # its descriptors are shared with the parent: keep them open
            self._loop = self._held.loop = None
        self.pool.abandon()
        self.channels.abandon()
        self._clients.clear()
        self._busy.clear()
        self._push_listeners.clear()
        self._missing_topics = None
        self.callbacks = CallbackExecutor()
        self._session = uuid.uuid4().hex

    def check_open(self) -> None:
        """Raise ClientClosed after `close()`."""
        if self._closed:
            raise ClientClosed("the connection to the cluster is closed")

    def _check_open(self, coroutine: Coroutine[Any, Any, _T]) -> None:
        if self._closed:
            coroutine.close()
            self.check_open()

    def _background(self) -> EventLoopThread:
        if self._loop is None:
            with self._starting:
                if self._loop is None:
                    created = EventLoopThread("raymq-client")
                    if self._loop is None:
                        self._loop = self._held.loop = created
                        EXPORTER.opened(self, created.loop)
                    else:  # a signal handler has created one meanwhile, and uses it
                        created.stop()  # type: ignore[unreachable]
        return self._loop

    def _pushed(self, connection: WireConnection, command: Command) -> Command | None:
        found = None
        for listener in list(self._push_listeners):
            try:
                answer = listener(connection, command)
            except Exception:  # noqa: BLE001 - an error of one client must not affect the others
                _log.exception("a handler of a broker's request failed")
            else:
                found = answer if found is None else found
        return found

    async def _through_the_actor(self, address: str, command: Command, timeout: float) -> Command:
        from raymq.client.actor_transport import invoke

        assert self.namespace is not None
        broker = await self.routes.broker_at(address, timeout)
        return await invoke(self.namespace, broker, address, self._session, command, timeout)


#: Connections that a worker process closes when it ends.
_of_this_process: weakref.WeakSet[Connection] = weakref.WeakSet()


#: Modules that an event loop on its own thread needs unpatched.
_UNPATCHED: Final = ("thread", "threading", "select")


def _check_not_patched() -> None:
    """Raise InvalidInput where gevent has patched threads.

    The loops of two connections would share one thread there.
    """
    monkey = sys.modules.get("gevent.monkey")
    patched = [name for name in _UNPATCHED if monkey is not None and monkey.is_module_patched(name)]
    if patched:
        raise InvalidInput(
            "gevent.monkey",
            "unpatched threads and select: a connection runs its event loop on a thread of its own",
            f"{' and '.join(patched)} patched",
            remedy="patch the rest: monkey.patch_all(thread=False, select=False)",
        )


def _close_together(clients: list[CloseableClient]) -> None:
    """Start to close all clients, then wait for all: many take no longer than one."""
    with ExitStack() as waits, ExitStack() as begins:
        for client in clients:
            begins.callback(_begin_close, client, waits)


def _begin_close(client: CloseableClient, waits: ExitStack) -> None:
    with contextlib.suppress(ClientClosed):  # another thread has closed the connection meanwhile
        waits.callback(_wait_quietly, client.begin_close(_CLOSE_SECONDS))


def _wait_quietly(wait: Callable[[], None]) -> None:
    with contextlib.suppress(ClientClosed):  # as above
        wait()


def _close_all() -> None:
    with ExitStack() as each:
        for connection in list(_of_this_process):
            each.callback(connection.close)


call_at_worker_exit(_close_all)


def _reconnect(name_servers: list[str], namespace: str | None, tls: Tls | None, tracing: bool = False) -> Connection:
    return Connection(name_servers, namespace=namespace, tls=tls, tracing=tracing)


def check_tracing(tracing: bool) -> bool:
    """Return `tracing`. Raise InvalidInput if it is set and OpenTelemetry is not installed."""
    if arguments.flag("tracing", tracing):
        try:
            import opentelemetry.trace  # noqa: F401 - the first import shows whether it is there
        except ModuleNotFoundError as error:
            limit = "False where opentelemetry-api is not installed"
            raise InvalidInput("tracing", limit, True, remedy='pip install "raymq[otel]"') from error
    return tracing


def _make_tracer(pool: ConnectionPool, namespace: str | None) -> MessageTracer:
    from raymq.client.tracing.message_tracer import MessageTracer

    return MessageTracer(pool, namespace)
