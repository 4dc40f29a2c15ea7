"""Looks, asks what is next, does it, and looks again, until nothing is left to be done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from raymq.actors.errors import BrokerUnavailable
from raymq.cluster.elastic.patience import Patience
from raymq.cluster.elastic.steps import Wait

#: How often the cluster is looked at.
LOOK_SECONDS: Final = 0.2

_Scene = TypeVar("_Scene")


async def carried_out(
    look: Callable[[], Awaitable[_Scene]],
    decide: Callable[[_Scene], object | None],
    do: Callable[[object], Awaitable[str]],
    told: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    pause_seconds: float = LOOK_SECONDS,
) -> list[str]:
    """The steps that were done, in words.

    Who does not answer now, when it is looked or a step is done, may in a moment: it is looked again.

    Args:
        look: how everything is now. decide: the next step by that, None at the end; what it raises ends it.
        do: does a step; what is to be said of it.
        told: is told each step before it is done, and what is waited for.

    Raises:
        BrokerUnavailable: the same has been in the way for too long.
        RayMQError: what `decide` raises, and other errors of a look or a step.
    """
    patience, done = Patience(clock), list[str]()
    while True:
        try:
            scene = await look()
        except BrokerUnavailable as error:
            told(_awaited(patience, error))
            await asyncio.sleep(pause_seconds)
            continue
        step = decide(scene)
        if step is None:
            return done
        told(str(step))
        if isinstance(step, Wait):
            patience.rest()  # who was away is there: what is waited for now is known
        else:
            try:
                said = await do(step)
            except BrokerUnavailable as error:
                told(_awaited(patience, error))
            else:
                patience.rest()
                done.append(str(step))
                if said:
                    told(said)
        await asyncio.sleep(pause_seconds)


def _awaited(patience: Patience, error: BrokerUnavailable) -> str:
    if patience.is_over(str(error)):
        raise error
    return str(Wait(str(error)))
