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
  repeat it, one run is under way and one waits. So an answer is never older than its request. Only a few runs are under
  way at a time, since each holds its partial result in memory. A query waits until its client reads its answers.
* `OrderedHandlers`: for changes of the broker's knowledge of one client. The changes of one connection are made one
  after another in the order of arrival, so that an older one never overwrites a newer one; a repeated request that
  still waits is made once. A claim (a heartbeat) is cancelled with its connection; a release is carried out in any
  case.
* `steps_handler`: for independent changes, such as an append, whose outcome matters even if the client is gone. They
  are always carried out.

A generator is cancelled by closing it at a yield. So at each yield a change must be either complete or without effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
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


# -- runs that wait for each other ----------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Run:
    """One run of a long request, for one or more equal requests.

    `content` is equal for equal requests.
    """

    content: object
    has_begun: bool
    waiting: int = 0
    task: asyncio.Task[Command | asyncio.Future[Command]] = field(init=False)

    @property
    def may_be_joined(self) -> bool:
        """Return True if a request that arrives now may share the run."""
        return not self.has_begun and not self.task.cancelling()

    async def join(self, request: Command, *, cancels: bool) -> Command:
        """Return the run's answer with the opaque of `request`.

        Args:
            cancels: cancel the run if this was the last request that waits for it.
        """
        self.waiting += 1
        try:
            outcome = await asyncio.shield(self.task)
        finally:
            self.waiting -= 1
            if cancels and not self.waiting:
                self.task.cancel()
        answer = outcome if isinstance(outcome, Command) else await asyncio.shield(outcome)
        return replace(answer, opaque=request.opaque)


class _Runs:
    """The newest run of each key.

    Each run waits for the previous one of its key. Used on one loop.
    """

    def __init__(self, most: int = 1 << 30) -> None:
        """Create it; at most `most` runs are under way at a time."""
        self._most, self._slots = most, asyncio.Semaphore(most)
        self._newest: dict[object, _Run] = {}

    def answer(
        self,
        serve: Serve,
        connection: ServerConnection,
        request: Command,
        key: object | None = None,
        *,
        is_claim: bool = False,
        cancels: bool = False,
    ) -> Command | Awaitable[Command]:
        """Serve a request, at once if it takes one step and may.

        Args:
            key: None for the request's content.
            is_claim: cancel the run if the connection is gone.
            cancels: cancel the run if no request waits for it any more.
        """
        newest, content = None, None
        if self._newest:  # else the content is not needed if one step is enough
            content = _content(request)
            newest = self._newest.get(key or content)
        if newest is not None and newest.may_be_joined and newest.content == content:
            return newest.join(request, cancels=cancels)
        steps, aside = serve(connection, request), None
        if newest is None:
            try:
                aside = next(steps)
            except StopIteration as end:
                result: Command | Awaitable[Command] = end.value
                return result
        has_begun = newest is None and len(self._newest) < self._most
        if newest is None and not has_begun:  # what waits must not hold a partial result
            steps.close()
            steps, aside = serve(connection, request), None
        content = content or _content(request)
        key = key or content
        run = self._newest[key] = _Run(content, has_begun)
        wanted = (lambda: not connection.is_gone) if is_claim else (lambda: True)
        run.task = asyncio.get_running_loop().create_task(self._work(run, newest, steps, aside, wanted))
        run.task.add_done_callback(lambda _: self._forget(key, run))
        return run.join(request, cancels=cancels)

    async def _work(
        self,
        run: _Run,
        previous: _Run | None,
        steps: Steps[Command | Awaitable[Command]],
        aside: _ThreadWork | None,
        is_wanted: Callable[[], bool],
    ) -> Command | asyncio.Future[Command]:
        try:
            if previous is not None:
                await asyncio.wait([previous.task])
            async with self._slots:
                run.has_begun = True
                await _after(aside)
                outcome = await stepwise(steps, is_wanted)
        except StepsCancelled:
            raise asyncio.CancelledError from None
        finally:
            steps.close()
        return outcome if isinstance(outcome, Command) else asyncio.ensure_future(outcome)

    def _forget(self, key: object, run: _Run) -> None:
        if self._newest.get(key) is run:
            del self._newest[key]


def _content(request: Command) -> object:
    """Return a key that is equal for two requests with the same content."""
    content = repr(sorted(request.fields.items())), bytes(request.body)
    return request.code, request.serialization, request.language, request.version, content


def coalescing_handler(serve: Serve, passes: int = _PASSES) -> Handler:
    """Return a handler that runs queries in steps and shares runs of equal queries.

    At most `passes` queries run at a time; the module docstring describes the rules.
    """
    runs = _Runs(passes)

    def handle(connection: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        if not connection.writable.is_set():
            return later(connection, request)
        return runs.answer(serve, connection, request, cancels=True)

    async def later(connection: ServerConnection, request: Command) -> Command:
        await connection.writable.wait()  # else unread answers would pile up; also set when the connection is lost
        result = handle(connection, request)
        return result if isinstance(result, Command) else await result

    handle.waits = True  # type: ignore[attr-defined]
    return handle


class OrderedHandlers:
    """Makes handlers whose changes are made in the order of each connection's requests.

    Used on one loop.
    """

    def __init__(self) -> None:
        self._runs = _Runs()

    def claim(self, serve: Serve) -> Handler:
        """Return a handler of a change that is cancelled when its connection ends."""
        return lambda connection, request: self._runs.answer(serve, connection, request, connection, is_claim=True)

    def release(self, serve: Serve) -> Handler:
        """Return a handler of a release, which is carried out in any case.

        A release gives up something that the client holds; it does not depend on the connection.
        """
        return lambda connection, request: self._runs.answer(serve, connection, request, connection)
