"""Long work on a server's loop: between two steps of it others have their turn.

How much work a request asks for, its peer decides: by a list in it, or by what was made before, such as topics. So
whatever grows with either is a generator of steps (`raymq.storage.steps`), and `in_steps` makes a handler of it. A
request that is done with the first step, as nearly all are, is served like any other: at once, in the order in which
its connection's requests arrived. What takes longer goes on in further turns of the loop, and the long works of all
requests together have one step of each turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypeVar
from weakref import WeakKeyDictionary

from raymq.actors.wire.frame import Command
from raymq.actors.wire.server import Handler, ServerConnection
from raymq.storage.steps import Steps

T = TypeVar("T")

#: Of each loop: who holds it does a step.
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def stepwise(steps: Steps[T]) -> T:
    """The result of `steps`; what belongs to no thread is done beside the loop."""
    loop = asyncio.get_running_loop()
    turn = _turns.get(loop)
    if turn is None:
        turn = _turns[loop] = asyncio.Lock()
    while True:
        async with turn:
            try:
                aside = next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            if aside is None:
                await asyncio.sleep(0)  # the next one who has long work begins after it
        if aside is not None:
            await asyncio.to_thread(aside)


def in_steps(
    serve: Callable[[ServerConnection, Command], Steps[Command | Awaitable[Command]]],
) -> Handler:
    """The handler of a generator that serves a request in steps, the first of them at once."""

    def handle(connection: ServerConnection, request: Command) -> Command | Awaitable[Command]:
        steps = serve(connection, request)
        try:
            aside = next(steps)
        except StopIteration as end:
            result: Command | Awaitable[Command] = end.value
            return result
        return _goes_on(steps, aside)

    return handle


async def _goes_on(steps: Steps[Command | Awaitable[Command]], aside: Callable[[], None] | None) -> Command:
    await (asyncio.sleep(0) if aside is None else asyncio.to_thread(aside))
    result = await stepwise(steps)
    return await result if isawaitable(result) else result
