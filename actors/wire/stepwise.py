"""Long work on a broker's loop: between two steps of it others have their turn."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from raymq.storage.steps import Steps

T = TypeVar("T")


async def stepwise(steps: Steps[T]) -> T:
    """The result of `steps`; what belongs to no thread is done beside the loop."""
    while True:
        try:
            aside = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if aside is None:
            await asyncio.sleep(0)
        else:
            await asyncio.to_thread(aside)
