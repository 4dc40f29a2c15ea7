"""The duties of a broker's loop: each is done every so many seconds, whatever becomes of one turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from raymq.actors.broker.core.duty_troubles import DutyTroubles

_log = logging.getLogger(__name__)


async def repeat(name: str, seconds: float, duty: Callable[[], Awaitable[None]]) -> None:
    """Do a duty every so many seconds; one turn that fails ends no later ones."""
    troubles = DutyTroubles(name, seconds)
    wait = seconds
    while True:
        await asyncio.sleep(wait)
        try:
            await duty()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next turn is another one
            verdict = troubles.failed(error)
            wait = verdict.wait
            if verdict.line is not None:
                _log.error("%s", verdict.line, exc_info=error if verdict.in_full else None)
        else:
            troubles.succeeded()
            wait = seconds
