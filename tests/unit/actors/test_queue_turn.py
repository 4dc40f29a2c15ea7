"""Turns at a queue: one at a time, in the order of asking, from threads and on the loop, whoever gives up."""

from __future__ import annotations

import asyncio
import threading

import pytest

from raymq.actors.sending.queue_mutex import QueueMutex

ME, HIM = "me", "him"


def test_only_one_takes_it() -> None:
    turn = QueueMutex()
    assert turn.take(ME)
    assert not turn.take(HIM)
    assert turn.has(ME)
    assert not turn.has(HIM)
    turn.release(ME)
    assert turn.take(HIM)


def test_who_does_not_hold_it_releases_nothing() -> None:
    """Who was interrupted as it took it cannot know whether it has."""
    turn = QueueMutex()
    turn.release(ME)
    assert turn.take(ME)
    turn.release(HIM)
    assert not turn.take(HIM)


async def test_those_who_wait_come_before_those_who_do_not() -> None:
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
async def test_who_gives_up_waiting_holds_nothing(given: bool) -> None:
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


async def test_those_who_wait_go_on_though_who_released_it_was_interrupted_before_it_told_them() -> None:
    turn = QueueMutex()
    assert turn.take(ME)
    waiting = asyncio.ensure_future(turn.wait(1))
    await asyncio.sleep(0)
    turn._holder.clear()
    assert not turn.take(HIM)
    await asyncio.wait_for(waiting, 5)
    assert turn.has(1)


def test_a_loop_that_has_ended_takes_no_turn() -> None:
    turn = QueueMutex()
    assert turn.take(ME)
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(turn.wait(1))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    turn.release(ME)
    assert not waiting.done()
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]
