"""Handlers of long requests that run in steps on a server's loop.

The peer decides how much work a request needs: by a list in the request, or by the number of objects that were created
before, such as topics. So every operation whose work grows with either is a generator of steps
(`raymq.storage.cooperative_steps`), and this file makes a handler of it. A request that completes in its first step, as
nearly all do, is served like any other: at once, in the order in which its connection's requests arrived. A longer one
continues in further iterations of the loop, and all long requests together get one step per iteration.

While a long request runs, its client may time out, repeat the request, disconnect, or send a newer one. So each kind of
request has a wrapper that fits its purpose:

* `coalescing_handler`: for requests that only read. A run is cancelled when the last connection that waits for it is
  gone. Equal requests that arrive during a run wait together for the next run: of one query, however often clients
  repeat it, one run is under way and one waits. So an answer is never older than its request. Only a few runs of
  different queries are under way at a time, since each holds its partial result in memory; the others wait in a queue,
  and also until their clients read their answers.
* `OrderedHandlers`: for changes of the broker's knowledge of one client. The changes of one connection are made one
  after another in the order of arrival, so that an older one never overwrites a newer one; a repeated request that
  still waits is made once. A claim (a heartbeat, a lock) is cancelled with its connection; a release is carried out in
  any case.
* `steps_handler`: for independent changes, such as an append, whose outcome matters even if the client is gone. They
  are always carried out.

A generator is cancelled by closing it at a yield. So at each yield a change must be either complete or without effect.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import Handler, ServerConnection
from raymq.storage.cooperative_steps import Steps

T = TypeVar("T")
#: A handler that serves a request in steps.
Serve = Callable[[ServerConnection, Command], Steps[Command | Awaitable[Command]]]
_ThreadWork = Callable[[], None]

#: So many different queries of one kind run at a time.
_PASSES: Final = 8

#: The lock of each loop; its holder runs one step.
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


class StepsCancelled(Exception):
    """A long request was cancelled between two steps, since its result is not needed."""


async def stepwise(steps: Steps[T], is_wanted: Callable[[], bool] = lambda: True) -> T:
    """Run `steps` to the end and return their result.

    If a step yields a function, the function is called in another thread. The steps are closed in any case.

    Raises:
        StepsCancelled: `is_wanted`, which is called before each step, returned False.
    """
    loop = asyncio.get_running_loop()
    turn = _turns.get(loop)
    if turn is None:
        turn = _turns[loop] = asyncio.Lock()
    try:
        while True:
            async with turn:
                if not is_wanted():
                    raise StepsCancelled
                try:
                    aside = next(steps)
                except StopIteration as end:
                    result: T = end.value
                    return result
                if aside is None:
                    await asyncio.sleep(0)  # the next long request gets its step one iteration later
            if aside is not None:
                await asyncio.to_thread(aside)
    finally:
        steps.close()


def steps_handler(serve: Serve) -> Handler:
    """Return a handler that runs a generator to its end, its first step at once.

    The steps are carried out even if the client is gone.
    """

    def handle(connection: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        steps = serve(connection, request)
        try:
            aside = next(steps)
        except StopIteration as end:
            result: Command | Awaitable[Command] = end.value
            return result
        return _goes_on(steps, aside)

    return handle


async def _goes_on(steps: Steps[Command | Awaitable[Command]], aside: _ThreadWork | None) -> Command:
    await _after(aside)
    result = await stepwise(steps)
    return await result if isawaitable(result) else result


async def _after(aside: _ThreadWork | None) -> None:
    """Call the function that a step yielded in a thread, or let other tasks run."""
    await (asyncio.sleep(0) if aside is None else asyncio.to_thread(aside))


def _says(request: Command) -> object:
    """Return a key that is equal for two requests with the same content."""
    content = repr(sorted(request.fields.items())), bytes(request.body)
    return request.code, request.serialization, request.language, request.version, content


# -- queries ----------------------------------------------------------------------------------------------------


def coalescing_handler(serve: Serve, passes: int = _PASSES) -> Handler:
    """Return a handler that runs queries in steps and shares runs of equal queries.

    At most `passes` different queries run at a time; the module docstring describes the rules.
    """
    questions = _QueryCoalescer(serve, passes)

    def handle(connection: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        return questions.ask(connection, request)

    handle.waits = True  # type: ignore[attr-defined]
    return handle


@dataclass(slots=True, eq=False)
class _QueryRun:
    """One run of a query; it waits in the queue until it has a task."""

    connection: ServerConnection
    request: Command
    askers: list[tuple[ServerConnection, Command, asyncio.Future[Command]]] = field(default_factory=list)
    following: _QueryRun | None = None
    task: asyncio.Task[None] | None = None
    #: Tasks that wait until a requesting connection reads its answers; the run is not queued until then.
    watchers: set[asyncio.Task[None]] = field(default_factory=set)

    def join(self, connection: ServerConnection, request: Command) -> asyncio.Future[Command]:
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self.askers.append((connection, request, future))
        future.add_done_callback(self._left)
        return future

    @property
    def is_wanted(self) -> bool:
        return not all(future.done() for _, _, future in self.askers)

    @property
    def waiting_connections(self) -> set[ServerConnection]:
        return {connection for connection, _, future in self.askers if not future.done()}

    def end(self, answer: Command | None, error: Exception | None) -> None:
        for _, request, future in self.askers:
            if future.done():
                continue
            if error is not None:
                future.set_exception(error)
            elif answer is not None:
                future.set_result(replace(answer, opaque=request.opaque))

    def _left(self, future: asyncio.Future[Command]) -> None:
        if future.cancelled() and self.task is not None and not self.is_wanted:
            self.task.cancel()


class _QueryCoalescer:
    """The current runs of one handler's queries. Used on one loop."""

    def __init__(self, serve: Serve, most: int) -> None:
        self._serve = serve
        self._most = most
        #: The runs under way and the waiting ones, by the content of their request.
        self._passes: dict[object, _QueryRun] = {}
        self._under_way = 0
        self._waiting: deque[tuple[object, _QueryRun]] = deque()

    def ask(self, connection: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        known = self._passes.get(_says(request)) if self._passes else None
        if known is not None and known.task is None:
            answer = known.join(connection, request)
            if known.watchers:
                self._rest(_says(request), known, {connection})
            return answer
        if known is not None:
            if known.following is None or not known.following.is_wanted:
                known.following = _QueryRun(connection, request)
            return known.following.join(connection, request)
        steps = self._serve(connection, request)
        try:
            aside = next(steps)
        except StopIteration as end:
            result: Command | Awaitable[Command] = end.value
            return result
        begun = _QueryRun(connection, request)
        answer = begun.join(connection, request)
        if self._under_way < self._most:
            self._begin(_says(request), begun, steps, aside)
        else:
            steps.close()
            self._passes[_says(request)] = begun
            self._waiting.append((_says(request), begun))
        return answer

    def _begin(
        self, key: object, begun: _QueryRun, steps: Steps[Command | Awaitable[Command]], aside: _ThreadWork | None
    ) -> None:
        self._passes[key] = begun
        self._under_way += 1
        begun.task = asyncio.get_running_loop().create_task(self._work(begun, steps, aside))
        begun.task.add_done_callback(lambda _: self._next(key, begun))

    async def _work(
        self, begun: _QueryRun, steps: Steps[Command | Awaitable[Command]], aside: _ThreadWork | None
    ) -> None:
        try:
            await _after(aside)
            result = await stepwise(steps)
            answer = await result if isawaitable(result) else result
        except Exception as error:  # noqa: BLE001 - the error is the answer
            begun.end(None, error)
        else:
            begun.end(answer, None)
        finally:
            steps.close()

    def _next(self, key: object, ended: _QueryRun) -> None:
        self._under_way -= 1
        following = ended.following
        if following is None or not following.is_wanted:
            del self._passes[key]
        else:
            self._passes[key] = following
            self._waiting.append((key, following))
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._under_way < self._most:
            key, begun = self._waiting.popleft()
            connections = begun.waiting_connections
            if not connections:
                del self._passes[key]
            elif any(each.writable.is_set() for each in connections):
                self._begin(key, begun, self._serve(begun.connection, begun.request), None)
            else:
                self._rest(key, begun, connections)

    def _rest(self, key: object, begun: _QueryRun, connections: Collection[ServerConnection]) -> None:
        """Delay a run until one of the connections `connections` reads its answers.

        Otherwise unread answers would pile up.
        """

        async def watch(connection: ServerConnection) -> None:
            await connection.writable.wait()  # also set when the connection is lost
            if begun.watchers:
                others, begun.watchers = begun.watchers - {asyncio.current_task()}, set()
                for other in others:
                    other.cancel()
                self._waiting.append((key, begun))
                self._go_on()

        loop = asyncio.get_running_loop()
        begun.watchers |= {loop.create_task(watch(each)) for each in connections}


# -- changes of one client -----------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _OrderedChange:
    """A change that waits or is being made."""

    says: object
    is_claim: bool
    steps: Steps[Command | Awaitable[Command]]
    #: The result of the steps: the answer, or a future of it.
    result: asyncio.Future[Command | asyncio.Future[Command]]


class OrderedHandlers:
    """Makes handlers whose changes are made in the order of each connection's requests.

    Used on one loop.
    """

    def __init__(self) -> None:
        self._waiting: dict[ServerConnection, deque[_OrderedChange]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def claim(self, serve: Serve) -> Handler:
        """Return a handler of a change that is cancelled when its connection ends."""
        return self._handler(serve, is_claim=True)

    def release(self, serve: Serve) -> Handler:
        """Return a handler of a release, which is carried out in any case.

        A release gives up something that the client holds; it does not depend on the connection.
        """
        return self._handler(serve, is_claim=False)

    def _handler(self, serve: Serve, *, is_claim: bool) -> Handler:
        def handle(connection: ServerConnection, request: Command) -> Command | Awaitable[Command]:
            waiting = self._waiting.get(connection)
            if waiting is not None:
                says = _says(request)
                if not waiting or waiting[-1].says != says:
                    waiting.append(self._change(says, serve(connection, request), is_claim=is_claim))
                return _answer(request, waiting[-1].result)
            steps = serve(connection, request)
            try:
                aside = next(steps)
            except StopIteration as end:
                result: Command | Awaitable[Command] = end.value
                return result
            begun = self._change(_says(request), steps, is_claim=is_claim)
            self._waiting[connection] = deque()
            task = asyncio.get_running_loop().create_task(self._make(connection, begun, aside))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return _answer(request, begun.result)

        return handle

    def _change(self, says: object, steps: Steps[Command | Awaitable[Command]], *, is_claim: bool) -> _OrderedChange:
        return _OrderedChange(says, is_claim, steps, asyncio.get_running_loop().create_future())

    async def _make(self, connection: ServerConnection, begun: _OrderedChange, aside: _ThreadWork | None) -> None:
        waiting, change = self._waiting[connection], begun
        try:
            await _after(aside)
            while True:
                await self._make_one(connection, change)
                if not waiting:
                    return
                change = waiting.popleft()
        finally:
            del self._waiting[connection]
            for pending in (change, *waiting):
                pending.steps.close()
                pending.result.cancel()

    async def _make_one(self, connection: ServerConnection, change: _OrderedChange) -> None:
        def is_wanted() -> bool:
            return not (change.is_claim and connection.is_gone)

        try:
            outcome = await stepwise(change.steps, is_wanted)
        except StepsCancelled:
            change.result.cancel()
        except Exception as error:  # noqa: BLE001 - the error is the answer
            if not change.result.done():
                change.result.set_exception(error)
        else:
            if not change.result.done():
                change.result.set_result(outcome if isinstance(outcome, Command) else asyncio.ensure_future(outcome))


async def _answer(request: Command, result: asyncio.Future[Command | asyncio.Future[Command]]) -> Command:
    """Return the answer of a shared change with the opaque of `request`."""
    outcome = await asyncio.shield(result)
    answer = outcome if isinstance(outcome, Command) else await asyncio.shield(outcome)
    return replace(answer, opaque=request.opaque)
