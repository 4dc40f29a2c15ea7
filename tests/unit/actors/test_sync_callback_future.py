"""Test that a SyncCallbackFuture calls back in the same turn of the loop, before its awaiters."""

from __future__ import annotations

import asyncio

import pytest

from raymq.actors.wire.sync_callback_future import SyncCallbackFuture


def make_future() -> SyncCallbackFuture[int]:
    return SyncCallbackFuture(loop=asyncio.get_running_loop())


async def test_callbacks_run_at_once_and_in_order() -> None:
    future, results = make_future(), list[object]()
    future.add_sync_callback(lambda done: results.append(("first", done.result())))
    future.add_sync_callback(lambda done: results.append(("second", done.result())))
    future.set_result(7)
    assert results == [("first", 7), ("second", 7)]
    future.add_sync_callback(lambda done: results.append("late"))
    assert results.pop() == "late"
    assert await future == 7


async def test_callbacks_run_on_error_and_cancellation() -> None:
    results = list[object]()
    failed, gone = make_future(), make_future()
    failed.add_sync_callback(lambda done: results.append(type(done.exception())))
    failed.set_exception(ValueError("x"))
    gone.add_sync_callback(lambda done: results.append(done.cancelled()))
    assert gone.cancel()
    assert not gone.cancel()
    assert results == [ValueError, True]
    with pytest.raises(ValueError, match="x"):
        await failed


async def test_future_can_be_awaited_by_several() -> None:
    future = make_future()
    waiting = [asyncio.ensure_future(asyncio.wait_for(asyncio.shield(future), 5)) for _ in range(2)]
    await asyncio.sleep(0)
    future.set_result(3)
    assert await asyncio.gather(*waiting) == [3, 3]
