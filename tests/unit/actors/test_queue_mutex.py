"""Test the queue mutex: one holder at a time, in order, for threads and the loop, with cancellation."""

from __future__ import annotations

import asyncio
import threading

import pytest

from raymq.actors.sending.partition_sequence import QueueMutex

ME, OTHER = "me", "him"


def test_only_one_owner_takes_mutex() -> None:
    turn = QueueMutex()
    assert turn.take(ME)
    assert not turn.take(OTHER)
    assert turn.has(ME)
    assert not turn.has(OTHER)
    turn.release(ME)
    assert turn.take(OTHER)


def test_release_by_non_holder_does_nothing() -> None:
    """Allow a release by an owner that was interrupted while taking the mutex."""
    turn = QueueMutex()
    turn.release(ME)
    assert turn.take(ME)
    turn.release(OTHER)
    assert not turn.take(OTHER)


async def test_waiters_come_before_new_owners() -> None:
    turn = QueueMutex()
    assert turn.take(ME)
    order: list[int] = []

    async def wait(number: int) -> None:
        await turn.wait(number)
        order.append(number)
        assert not turn.take(ME)
        turn.release(number)

    tasks = [asyncio.ensure_future(wait(number)) for number in range(3)]
    await asyncio.sleep(0)
    threading.Thread(target=turn.release, args=(ME,)).start()
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2]
    assert turn.take(ME)


@pytest.mark.parametrize("given", [True, False])
async def test_cancelled_waiter_holds_nothing(given: bool) -> None:
    turn = QueueMutex()
    assert turn.take(ME)
    gone, next_one = asyncio.ensure_future(turn.wait(1)), asyncio.ensure_future(turn.wait(2))
    await asyncio.sleep(0)
    if given:
        turn.release(ME)
        gone.cancel()
    else:
        gone.cancel()
        await asyncio.sleep(0)
        turn.release(ME)
    await asyncio.wait_for(next_one, 5)
    assert gone.cancelled()
    turn.release(2)
    assert turn.take(ME)


async def test_waiters_continue_after_interrupted_release() -> None:
    turn = QueueMutex()
    assert turn.take(ME)
    waiting = asyncio.ensure_future(turn.wait(1))
    await asyncio.sleep(0)
    turn._holder.clear()
    assert not turn.take(OTHER)
    await asyncio.wait_for(waiting, 5)
    assert turn.has(1)


def test_waiter_of_closed_loop_takes_no_turn() -> None:
    turn = QueueMutex()
    assert turn.take(ME)
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(turn.wait(1))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    turn.release(ME)
    assert not waiting.done()
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]
