"""Observe, plan and execute steps, until nothing is left to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from raymq.actors.errors import BrokerUnavailable
from raymq.cluster.elastic.change_steps import WaitStep
from raymq.cluster.elastic.stall_timeout import StallTimeout

#: The pause between two observations.
POLL_SECONDS: Final = 0.2

_Scene = TypeVar("_Scene")


async def run_until_done(
    look: Callable[[], Awaitable[_Scene]],
    decide: Callable[[_Scene], object | None],
    do: Callable[[object], Awaitable[str]],
    report: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    pause_seconds: float = POLL_SECONDS,
) -> list[str]:
    """Execute steps until none is left, and return their descriptions.

    If a broker is unavailable during an observation or a step, the loop observes again.

    Args:
        look: observes the current state.
        decide: returns the next step for that state, None at the end; an error that it raises ends the loop.
        do: executes a step, and returns a message about it.
        report: is called with each step before it is executed, and with the reason of each wait.

    Raises:
        BrokerUnavailable: the same broker was unavailable for too long.
        RayMQError: an error of `decide`, and other errors of an observation or a step.
    """
    patience, done = StallTimeout(clock), list[str]()
    while True:
        try:
            scene = await look()
        except BrokerUnavailable as error:
            report(_awaited(patience, error))
            await asyncio.sleep(pause_seconds)
            continue
        step = decide(scene)
        if step is None:
            return done
        report(str(step))
        if isinstance(step, WaitStep):
            patience.reset()  # The observation succeeded, so the unavailable broker is back.
        else:
            try:
                result = await do(step)
            except BrokerUnavailable as error:
                report(_awaited(patience, error))
            else:
                patience.reset()
                done.append(str(step))
                if result:
                    report(result)
        await asyncio.sleep(pause_seconds)


def _awaited(patience: StallTimeout, error: BrokerUnavailable) -> str:
    if patience.has_expired(str(error)):
        raise error
    return str(WaitStep(str(error)))
