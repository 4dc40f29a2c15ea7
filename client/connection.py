"""A process's connection to a cluster: one background event loop, one socket per broker, the routes.

Every client (Producer, PushConsumer, ...) is given one and shares what it holds. Sockets are the way to the brokers; a
connection that reaches Ray, too, calls a broker's actor where the network does not lead to its socket.
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
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar
from weakref import WeakMethod

from raymq.actors.errors import ClientClosed, InvalidInput
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.protocol import Tls
from raymq.actors.routing import Routes
from raymq.actors.wire.channel import ChannelPool
from raymq.actors.wire.connection import ConnectionPool, WireConnection
from raymq.actors.wire.frame import MOST_FRAME_BYTES, Command
from raymq.actors.wire.tls import client_context
from raymq.client import arguments
from raymq.client.callbacks import Callbacks
from raymq.client.cluster_changes import ClusterChanges
from raymq.client.forking import leave_to_parent, renew_in_child
from raymq.client.worker_end import call_at_worker_end
from raymq.storage.closing import Closing

if TYPE_CHECKING:
    from raymq.client.missing_topics import MissingTopics

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
#: Gets a request that a broker sent by itself; returns the answer, or None: it is one-way, or for another listener.
PushListener = Callable[[WireConnection, Command], Command | None]

#: What a listener's call that has closed its connection may take to end, and to be committed.
_LAST_CALLS_SECONDS = 60.0
#: What all clients may take to close that are closed with their connection, and all producers behind them.
_CLOSE_SECONDS = 10.0
#: What callbacks of sends that were answered may take when the connection is closed.
_CALLBACK_SECONDS = 5.0


class Adoptable(Protocol):
    """A client that its connection closes with itself."""

    #: Whether others may send with it until they are closed.
    SENDS: ClassVar[bool]

    def close(self, timeout: float = 10.0) -> None:
        """Release everything; may be called twice."""

    def begin_close(self, timeout: float) -> Callable[[], None]:
        """Begin with `close`; returns what waits for its end."""


@dataclass(slots=True, eq=False)
class _Held:
    """What goes on without its connection: a loop's thread, which has the sockets, and those of other threads."""

    pool: ConnectionPool
    channels: ChannelPool
    at_exit: _AtExit
    loop: EventLoopThread | None = None

    def let_go(self) -> None:
        """Nobody has the connection any more, so nothing is under way. Waits for nothing: any thread may call it."""
        atexit.unregister(self.at_exit)
        self.channels.close()
        if self.loop is not None and self.loop.is_running:
            with contextlib.suppress(RuntimeError):
                self.loop.submit(self._end(self.loop))

    async def _end(self, loop: EventLoopThread) -> None:
        await self.pool.close()
        loop.stop()


class _AtExit:
    """Closes a connection as the program ends, if somebody has it then."""

    def __init__(self, mq: Connection) -> None:
        self._mq = weakref.ref(mq)

    def __call__(self) -> None:
        mq = self._mq()
        if mq is not None:
            mq.close()


class Connection(Closing):
    """Thread-safe. Closes its clients, its sockets and its thread with `close()`, at the latest at the process's end,
    also where that is a worker of `multiprocessing` or of a `ProcessPoolExecutor`. One that nobody refers to any more,
    neither the program nor anything that is under way, closes its sockets and its thread then.

    It pickles to its addresses and connects anew where it is unpickled, as in a Ray or Spark task. After a fork the
    child has sockets and a thread of its own as soon as it uses them, and the parent keeps its own; consumers that run
    in the background stay the parent's.
    """

    def __init__(
        self, name_servers: str | Sequence[str], *, namespace: str | None = None, tls: Tls | None = None
    ) -> None:
        """Connects lazily.

        Args:
            name_servers: "host:port", several as a list or separated by ";" or ",".
            namespace: the cluster's in Ray, None where Ray is out of reach.

        Raises:
            InvalidInput: an address is not "host:port", or a file of `tls` cannot be used; or gevent has patched what
                the background event loop needs.
        """
        _check_not_patched()
        self.name_servers = arguments.addresses("name_servers", name_servers)
        self.namespace = namespace
        self.tls = tls
        context = None if tls is None else client_context(tls)
        # The sockets are the loop's, whose thread lives: it must not keep their owner alive.
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
                raise ClientClosed("the connection to the cluster is gone")
            return await door(address, command, timeout)

        #: For threads that wait for an answer themselves.
        self.channels = ChannelPool(context, name_of)
        self.pool = ConnectionPool(
            pushed,
            tls=context,
            second_door=None if namespace is None else through_the_actor,
            name_of=name_of,
            max_frame_bytes=MOST_FRAME_BYTES,
        )
        self.routes = Routes(self.pool, self.name_servers)
        self._missing_topics: MissingTopics | None = None
        self._clients: weakref.WeakSet[Adoptable] = weakref.WeakSet()
        #: Those of them that have something to do that their user need not wait for.
        self._busy: set[Adoptable] = set()
        self._push_listeners: list[PushListener] = []
        self._closed = False
        #: Where users' callbacks run.
        self.callbacks = Callbacks()
        #: A signal handler may send, too, on the thread that it has interrupted here.
        self._starting = threading.RLock()
        self._ending = threading.Lock()
        self._loop: EventLoopThread | None = None
        self._session = uuid.uuid4().hex
        self._at_exit = _AtExit(self)
        atexit.register(self._at_exit)
        self._held = _Held(self.pool, self.channels, self._at_exit)
        weakref.finalize(self, self._held.let_go).atexit = False  # the program's end closes it
        _of_this_process.add(self)
        renew_in_child(self, type(self).begin_anew, before_users=True)  # which adopts those of its clients that go on

    def __repr__(self) -> str:
        """One line: which cluster, and whether it is open."""
        namespace = "" if self.namespace is None else f"namespace={self.namespace!r}, "
        tls = "" if self.tls is None else ", tls"
        state = "closed" if self._closed else "open"
        return f"{type(self).__name__}({namespace}name_servers={';'.join(self.name_servers)!r}{tls}, {state})"

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The background event loop, which owns sockets and routes."""
        return self._background().loop

    @property
    def loop_thread(self) -> EventLoopThread | None:
        """Who runs that loop; None before its first use."""
        return self._loop

    @property
    def is_on_loop(self) -> bool:
        """Whether the calling thread is the background loop's own, which must not block."""
        loop = self._loop
        return loop is not None and loop.thread_id == threading.get_ident()

    @property
    def reaches_ray(self) -> bool:
        """Whether the cluster's actors can be called, too."""
        return self.namespace is not None

    @property
    def missing_topics(self) -> MissingTopics:
        """The topics that its consumers wait for. For who is on the background loop."""
        if self._missing_topics is None:
            from raymq.client.missing_topics import MissingTopics

            self._missing_topics = MissingTopics(self.routes)
        return self._missing_topics

    def cluster_changes(self) -> ClusterChanges:
        """What starts and ends brokers; InvalidInput where the cluster's actors cannot be called."""
        raise InvalidInput(
            "mq",
            "a connection that reaches the cluster's Ray (cluster.connect(namespace=...)): it starts and ends actors",
            ";".join(self.name_servers),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _reconnect, (self.name_servers, self.namespace, self.tls)

    def run(self, coroutine: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Run a coroutine on the background loop and wait for it. Raises ClientClosed after `close()`."""
        self._check_open(coroutine)
        try:
            return self._background().run(coroutine, timeout)
        except (CancelledError, RuntimeError):
            if self._closed:  # meanwhile, by another thread or by the end of the program
                raise ClientClosed("the connection to the cluster was closed") from None
            raise

    async def arun(self, coroutine: Coroutine[Any, Any, _T], under_way: set[Future[Any]] | None = None) -> _T:
        """`run` for asyncio code, whatever loop the caller is on. Who gives up cancels it.

        Until it has ended it is one of those `under_way`, unless the caller is on the background loop.
        """
        if asyncio.get_running_loop() is self.loop:
            return await coroutine
        try:
            return await asyncio.wrap_future(self._submit_among(under_way, coroutine))
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._closed and (caller is None or not caller.cancelling()):
                raise ClientClosed("the connection to the cluster was closed") from None
            raise

    def _submit_among(self, under_way: set[Future[Any]] | None, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        if under_way is None:
            return self.submit(coroutine)
        ended: Future[None] = Future()
        leave = partial(_leave, under_way, ended)
        try:
            under_way.add(ended)  # first: once it is submitted, it may be stored before another line runs here
            working = self.submit(coroutine)
            working.add_done_callback(leave)
        except BaseException:  # also one that a signal handler raises: nobody waits for it
            leave()
            raise
        return working

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine on the background loop. Raises ClientClosed after `close()`."""
        self._check_open(coroutine)
        return self._background().submit(coroutine)

    def wait(self, working: Future[_T], timeout: float | None = None) -> _T:
        """The result of what `submit` has begun, and goes on also where nobody waits. ClientClosed after `close()`."""
        if self.is_on_loop and not working.done():
            raise RuntimeError("a blocking call on the event loop's own thread would wait for itself")
        try:
            return working.result(timeout)
        except CancelledError:
            if self._closed:
                raise ClientClosed("the connection to the cluster was closed") from None
            raise

    @property
    def run_aside(self) -> Callable[[Callable[[], None]], bool]:
        """For who is on the loop: `EventLoopThread.run_aside`."""
        return self._background().run_aside

    def adopt(self, client: Adoptable) -> None:
        """Close `client` with this connection, unless nobody has it any more by then."""
        self._clients.add(client)

    def hold(self, client: Adoptable) -> None:
        """Let `client`, which was adopted, live until `let_go`: it works in the background, and has to be closed."""
        self._busy.add(client)

    def let_go(self, client: Adoptable) -> None:
        """The reverse of `hold`."""
        self._busy.discard(client)

    def listen(self, listener: PushListener) -> None:
        """Call `listener`, on the loop, with requests that brokers send by themselves."""
        self._push_listeners.append(listener)

    def unlisten(self, listener: PushListener) -> None:
        """The reverse of `listen`."""
        with contextlib.suppress(ValueError):
            self._push_listeners.remove(listener)

    def close(self) -> None:
        """Close the clients, then the sockets. The cluster goes on.

        From inside the listener of one of its consumers it returns at once, as `PushConsumer.shutdown` does: the call
        that runs ends like any other, what it answers counts, and the rest is done behind it. So it does from inside a
        signal handler that has interrupted a send that gathers.
        """
        if self._closed:
            return
        clients = list(self._clients)
        if any(getattr(client, "is_interrupted", False) for client in clients):
            threading.Thread(target=self._close_clients, args=(clients,), name="raymq-close").start()
            return
        calling: list[Any] = [client for client in clients if getattr(client, "is_calling", False)]
        if calling:
            for consumer in calling:
                consumer.close()  # returns at once
            # Not even the others are waited for: they may be in calls of their own that do the same.
            threading.Thread(target=self._close_behind, args=(clients, calling), name="raymq-close").start()
        else:
            self._close_clients(clients)

    def _close_behind(self, clients: list[Adoptable], calling: list[Any]) -> None:
        """Once these consumers, of which one asked for it, have ended."""
        for consumer in calling:
            consumer.wait_for_end(_LAST_CALLS_SECONDS)
        self._close_clients(clients)

    def _close_clients(self, clients: list[Adoptable]) -> None:
        """Close all at the same time, whatever becomes of the others, and then the connection.

        Producers follow behind the others: what a listener sends in its last call has to arrive, too.
        """
        with ExitStack() as at_last:
            at_last.callback(self._close)
            at_last.callback(_close_together, [client for client in clients if client.SENDS])
            _close_together([client for client in clients if not client.SENDS])

    def _close(self) -> None:
        with self._ending:  # of several at once one closes it, and all return when it is closed
            if self._closed:
                return
            self._closed = True
            self.callbacks.close(_CALLBACK_SECONDS)
            self.channels.close()
            atexit.unregister(self._at_exit)
            if self._loop is not None and self._loop.is_running:
                self._loop.run(self.pool.close(), 5.0)
                self._loop.stop()

    async def aclose(self) -> None:
        """`close` for asyncio code."""
        await asyncio.to_thread(self.close)

    def begin_anew(self) -> None:
        """In a child process, after a fork: only the forking thread lives, and what is open is the parent's.

        Clients that go on in the child have themselves adopted again. The cluster's actors are out of its reach.
        """
        self.namespace = None
        self._starting = threading.RLock()
        self._ending = threading.Lock()
        if self._loop is not None:
            leave_to_parent(self._loop)  # it shares its descriptors with us
            self._loop = self._held.loop = None
        self.pool.abandon()
        self.channels.abandon()
        self._clients.clear()
        self._busy.clear()
        self._push_listeners.clear()
        self._missing_topics = None
        self.callbacks = Callbacks()
        self._session = uuid.uuid4().hex

    def check_open(self) -> None:
        """ClientClosed after `close()`."""
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
                    made = EventLoopThread("raymq-client")
                    if self._loop is None:
                        self._loop = self._held.loop = made
                    else:  # a signal handler has made one meanwhile, and uses it
                        made.stop()  # type: ignore[unreachable]
        return self._loop

    def _pushed(self, connection: WireConnection, command: Command) -> Command | None:
        found = None
        for listener in list(self._push_listeners):
            try:
                answer = listener(connection, command)
            except Exception:  # noqa: BLE001 - one client's; the connection is all clients'
                _log.exception("a listener to the brokers' own requests failed")
            else:
                found = answer if found is None else found
        return found

    async def _through_the_actor(self, address: str, command: Command, timeout: float) -> Command:
        from raymq.client.second_door import invoke

        assert self.namespace is not None
        broker = await self.routes.broker_at(address, timeout)
        return await invoke(self.namespace, broker, address, self._session, command, timeout)


#: Connections that a worker process closes when it ends.
_of_this_process: weakref.WeakSet[Connection] = weakref.WeakSet()


#: What an event loop on a thread of its own needs as it is.
_UNPATCHED: Final = ("thread", "threading", "select")


def _check_not_patched() -> None:
    """Refuse to connect where gevent has patched threads: the loops of two connections would share one thread."""
    monkey = sys.modules.get("gevent.monkey")
    patched = [name for name in _UNPATCHED if monkey is not None and monkey.is_module_patched(name)]
    if patched:
        raise InvalidInput(
            "gevent.monkey",
            "threads and select as Python has them: a connection runs its event loop on a thread of its own",
            f"{' and '.join(patched)} patched",
            remedy="patch the rest: monkey.patch_all(thread=False, select=False)",
        )


def _leave(under_way: set[Future[Any]], ended: Future[None], _: object = None) -> None:
    under_way.discard(ended)
    with contextlib.suppress(InvalidStateError):  # it has left already
        ended.set_result(None)


def _close_together(clients: list[Adoptable]) -> None:
    """Begin with all, then wait for all: many take no longer than one."""
    with ExitStack() as waits, ExitStack() as begins:
        for client in clients:
            begins.callback(_begin_close, client, waits)


def _begin_close(client: Adoptable, waits: ExitStack) -> None:
    with contextlib.suppress(ClientClosed):  # another thread has closed the connection meanwhile
        waits.callback(_wait_quietly, client.begin_close(_CLOSE_SECONDS))


def _wait_quietly(wait: Callable[[], None]) -> None:
    with contextlib.suppress(ClientClosed):  # as above
        wait()


def _close_all() -> None:
    with ExitStack() as each:
        for connection in list(_of_this_process):
            each.callback(connection.close)


call_at_worker_end(_close_all)


def _reconnect(name_servers: list[str], namespace: str | None, tls: Tls | None) -> Connection:
    return Connection(name_servers, namespace=namespace, tls=tls)
