"""Who is told of a prompt future is told in the same turn of the loop, before all who wait for it."""

from __future__ import annotations

import asyncio

import pytest

from raymq.actors.wire.sync_callback_future import SyncCallbackFuture


def made() -> SyncCallbackFuture[int]:
    return SyncCallbackFuture(loop=asyncio.get_running_loop())


async def test_an_outcome_is_told_at_once_and_in_order() -> None:
    future, told = made(), list[object]()
    future.add_sync_callback(lambda done: told.append(("first", done.result())))
    future.add_sync_callback(lambda done: told.append(("second", done.result())))
    future.set_result(7)
    assert told == [("first", 7), ("second", 7)]
    future.add_sync_callback(lambda done: told.append("late"))
    assert told.pop() == "late"
    assert await future == 7


async def test_an_error_and_a_cancellation_are_outcomes() -> None:
    told = list[object]()
    failed, gone = made(), made()
    failed.add_sync_callback(lambda done: told.append(type(done.exception())))
    failed.set_exception(ValueError("x"))
    gone.add_sync_callback(lambda done: told.append(done.cancelled()))
    assert gone.cancel()
    assert not gone.cancel()
    assert told == [ValueError, True]
    with pytest.raises(ValueError, match="x"):
        await failed


async def test_it_can_be_awaited_by_several() -> None:
    future = made()
    waiting = [asyncio.ensure_future(asyncio.wait_for(asyncio.shield(future), 5)) for _ in range(2)]
    await asyncio.sleep(0)
    future.set_result(3)
    assert await asyncio.gather(*waiting) == [3, 3]
