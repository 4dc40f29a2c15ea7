"""Long work on a server's loop: between two steps of it others have their turn, and it ends where nobody wants it.

How much work a request asks for, its peer decides: by a list in it, or by what was made before, such as topics. So
whatever grows with either is a generator of steps (`raymq.storage.steps`), and this file makes a handler of it. A
request that is done with the first step, as nearly all are, is served like any other: at once, in the order in
which its connection's requests arrived. What takes longer goes on in further turns of the loop, and the long works of
all requests together have one step of each turn.

While a work goes on its asker may lose patience, ask again, go, or say something newer. So each kind of request says
what its work is for:

* `question`: for its answer. It ends with the last connection that waits for it, and who asks the same meanwhile waits
  for the next pass together with all others who do: of one question, however many ask it how often, one pass is under
  way and one waits. An answer is never older than its question. Of different ones few are under way at a time, for
  each holds what it has found so far; the others wait for their turn, and until who asked reads his answers.
* `InOrder`: a change of what the broker knows of the client. Those of one connection are made one after another as they
  came, so that an older one never overwrites a newer one, and one that is repeated while it waits is made once. A claim
  (a heartbeat, a lock) ends with its connection; what gives something back is carried out all the same.
* `in_steps`: a change of its own, such as an append, whose outcome matters whoever waits for it. It is carried out.

A generator is ended by closing it, where it has yielded: so between two yields a change is whole, or takes nothing.
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
from raymq.storage.steps import Steps

T = TypeVar("T")
#: A handler that serves a request in steps.
Serve = Callable[[ServerConnection, Command], Steps[Command | Awaitable[Command]]]
_Aside = Callable[[], None]

#: Of different questions of one kind so many are worked on at a time.
_PASSES: Final = 8

#: Of each loop: who holds it does a step.
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


class NobodyWaits(Exception):
    """A work has ended between two steps, for nobody wants it any more."""


async def stepwise(steps: Steps[T], is_wanted: Callable[[], bool] = lambda: True) -> T:
    """The result of `steps`; what belongs to no thread is done beside the loop.

    However it ends, the steps are closed.

    Raises:
        NobodyWaits: it was not wanted any more, which is asked before each step.
    """
    loop = asyncio.get_running_loop()
    turn = _turns.get(loop)
    if turn is None:
        turn = _turns[loop] = asyncio.Lock()
    try:
        while True:
            async with turn:
                if not is_wanted():
                    raise NobodyWaits
                try:
                    aside = next(steps)
                except StopIteration as end:
                    result: T = end.value
                    return result
                if aside is None:
                    await asyncio.sleep(0)  # the next one who has long work begins after it
            if aside is not None:
                await asyncio.to_thread(aside)
    finally:
        steps.close()


def in_steps(serve: Serve) -> Handler:
    """The handler of a generator that serves a request in steps, the first of them at once. It is carried out."""

    def handle(connection: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        steps = serve(connection, request)
        try:
            aside = next(steps)
        except StopIteration as end:
            result: Command | Awaitable[Command] = end.value
            return result
        return _goes_on(steps, aside)

    return handle


async def _goes_on(steps: Steps[Command | Awaitable[Command]], aside: _Aside | None) -> Command:
    await _after(aside)
    result = await stepwise(steps)
    return await result if isawaitable(result) else result


async def _after(aside: _Aside | None) -> None:
    """What has to be between a step and the next one."""
    await (asyncio.sleep(0) if aside is None else asyncio.to_thread(aside))


def _says(request: Command) -> object:
    """Equal for two requests that say the same."""
    said = repr(sorted(request.fields.items())), bytes(request.body)
    return request.code, request.serialization, request.language, request.version, said


# -- questions -----------------------------------------------------------------------------------------------------


def question(serve: Serve, passes: int = _PASSES) -> Handler:
    """The handler of a question, which is answered in steps, `passes` at a time; see this file's first lines."""
    questions = _Questions(serve, passes)

    def handle(connection: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        return questions.ask(connection, request)

    handle.waits = True  # type: ignore[attr-defined]
    return handle


@dataclass(slots=True, eq=False)
class _Pass:
    """One time that a question is worked on; it waits for its turn as long as it has no task."""

    connection: ServerConnection
    request: Command
    askers: list[tuple[ServerConnection, Command, asyncio.Future[Command]]] = field(default_factory=list)
    following: _Pass | None = None
    task: asyncio.Task[None] | None = None
    #: Those who wait for one of those who asked to read his answers; it has no turn until then.
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
    def who_waits(self) -> set[ServerConnection]:
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


class _Questions:
    """Of one handler: what is asked at the moment. Used on one loop."""

    def __init__(self, serve: Serve, most: int) -> None:
        self._serve = serve
        self._most = most
        #: Those under way, and those that wait for their turn.
        self._passes: dict[object, _Pass] = {}
        self._under_way = 0
        self._waiting: deque[tuple[object, _Pass]] = deque()

    def ask(self, connection: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        known = self._passes.get(_says(request)) if self._passes else None
        if known is not None and known.task is None:
            answer = known.join(connection, request)
            if known.watchers:
                self._rest(_says(request), known, {connection})
            return answer
        if known is not None:
            if known.following is None or not known.following.is_wanted:
                known.following = _Pass(connection, request)
            return known.following.join(connection, request)
        steps = self._serve(connection, request)
        try:
            aside = next(steps)
        except StopIteration as end:
            result: Command | Awaitable[Command] = end.value
            return result
        begun = _Pass(connection, request)
        answer = begun.join(connection, request)
        if self._under_way < self._most:
            self._begin(_says(request), begun, steps, aside)
        else:
            steps.close()
            self._passes[_says(request)] = begun
            self._waiting.append((_says(request), begun))
        return answer

    def _begin(
        self, key: object, begun: _Pass, steps: Steps[Command | Awaitable[Command]], aside: _Aside | None
    ) -> None:
        self._passes[key] = begun
        self._under_way += 1
        begun.task = asyncio.get_running_loop().create_task(self._work(begun, steps, aside))
        begun.task.add_done_callback(lambda _: self._next(key, begun))

    async def _work(self, begun: _Pass, steps: Steps[Command | Awaitable[Command]], aside: _Aside | None) -> None:
        try:
            await _after(aside)
            result = await stepwise(steps)
            answer = await result if isawaitable(result) else result
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            begun.end(None, error)
        else:
            begun.end(answer, None)
        finally:
            steps.close()

    def _next(self, key: object, ended: _Pass) -> None:
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
            who = begun.who_waits
            if not who:
                del self._passes[key]
            elif any(each.writable.is_set() for each in who):
                self._begin(key, begun, self._serve(begun.connection, begun.request), None)
            else:
                self._rest(key, begun, who)

    def _rest(self, key: object, begun: _Pass, who: Collection[ServerConnection]) -> None:
        """Nobody reads what he has been answered: more answers would pile up. It waits until one of `who` does."""

        async def watch(connection: ServerConnection) -> None:
            await connection.writable.wait()  # or it is gone
            if begun.watchers:
                others, begun.watchers = begun.watchers - {asyncio.current_task()}, set()
                for other in others:
                    other.cancel()
                self._waiting.append((key, begun))
                self._go_on()

        loop = asyncio.get_running_loop()
        begun.watchers |= {loop.create_task(watch(each)) for each in who}


# -- changes of one client -----------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Change:
    """One that waits, or is made."""

    says: object
    is_claim: bool
    steps: Steps[Command | Awaitable[Command]]
    #: What its steps lead to: the answer, or what will be it.
    result: asyncio.Future[Command | asyncio.Future[Command]]


class InOrder:
    """The handlers of changes that one connection's requests make in order; used on one loop."""

    def __init__(self) -> None:
        self._waiting: dict[ServerConnection, deque[_Change]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def claim(self, serve: Serve) -> Handler:
        """The handler of a change that ends with its connection."""
        return self._handler(serve, is_claim=True)

    def release(self, serve: Serve) -> Handler:
        """The handler of a change that gives something back: it is carried out whoever waits for it."""
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

    def _change(self, says: object, steps: Steps[Command | Awaitable[Command]], *, is_claim: bool) -> _Change:
        return _Change(says, is_claim, steps, asyncio.get_running_loop().create_future())

    async def _make(self, connection: ServerConnection, begun: _Change, aside: _Aside | None) -> None:
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
            for left in (change, *waiting):
                left.steps.close()
                left.result.cancel()

    async def _make_one(self, connection: ServerConnection, change: _Change) -> None:
        def is_wanted() -> bool:
            return not (change.is_claim and connection.is_gone)

        try:
            made = await stepwise(change.steps, is_wanted)
        except NobodyWaits:
            change.result.cancel()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            if not change.result.done():
                change.result.set_exception(error)
        else:
            if not change.result.done():
                change.result.set_result(made if isinstance(made, Command) else asyncio.ensure_future(made))


async def _answer(request: Command, result: asyncio.Future[Command | asyncio.Future[Command]]) -> Command:
    """To one of those who asked for a change."""
    made = await asyncio.shield(result)
    answer = made if isinstance(made, Command) else await asyncio.shield(made)
    return replace(answer, opaque=request.opaque)
