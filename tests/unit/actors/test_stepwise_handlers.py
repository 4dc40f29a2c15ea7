"""Test that long work on a loop runs in steps, with turns for other work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator

import pytest

from raymq.actors.wire.stepwise_handlers import stepwise


async def test_steps_yield_turns_and_callables_run_in_thread() -> None:
    done: list[str] = []
    threads: list[threading.Thread] = []

    def work() -> Generator[Callable[[], None] | None, None, str]:
        for step in range(3):
            done.append(f"step {step}")
            yield None
        yield lambda: threads.append(threading.current_thread())
        return "result"

    async def other() -> None:
        for turn in range(3):
            done.append(f"other {turn}")
            await asyncio.sleep(0)

    result, _ = await asyncio.gather(stepwise(work()), other())
    assert result == "result"
    assert done == ["step 0", "other 0", "step 1", "other 1", "step 2", "other 2"]
    assert threads != [threading.current_thread()]


async def test_exception_of_step_is_raised() -> None:
    def work() -> Generator[Callable[[], None] | None, None, None]:
        yield None
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await stepwise(work())
