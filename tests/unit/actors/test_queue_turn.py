"""Turns at a queue: one at a time, in the order of asking, from threads and on the loop, whoever gives up."""

from __future__ import annotations

import asyncio
import threading

import pytest

from raymq.actors.sending.queue_turn import QueueTurn


def test_only_one_takes_it() -> None:
    turn = QueueTurn()
    assert turn.take()
    assert not turn.take()
    turn.release()
    assert turn.take()


async def test_those_who_wait_come_before_those_who_do_not() -> None:
    turn = QueueTurn()
    assert turn.take()
    order: list[int] = []

    async def wait(number: int) -> None:
        await turn.wait()
        order.append(number)
        assert not turn.take()
        turn.release()

    tasks = [asyncio.ensure_future(wait(number)) for number in range(3)]
    await asyncio.sleep(0)
    threading.Thread(target=turn.release).start()
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2]
    assert turn.take()


@pytest.mark.parametrize("given", [True, False])
async def test_who_gives_up_waiting_holds_nothing(given: bool) -> None:
    turn = QueueTurn()
    assert turn.take()
    gone, next_one = asyncio.ensure_future(turn.wait()), asyncio.ensure_future(turn.wait())
    await asyncio.sleep(0)
    if given:
        turn.release()
        gone.cancel()
    else:
        gone.cancel()
        await asyncio.sleep(0)
        turn.release()
    await asyncio.wait_for(next_one, 5)
    assert gone.cancelled()
    turn.release()
    assert turn.take()


def test_a_loop_that_has_ended_takes_no_turn() -> None:
    turn = QueueTurn()
    assert turn.take()
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(turn.wait())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    turn.release()
    assert not waiting.done()
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]
