"""Test the engine of a simple consumer without a broker: its messages and its timers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from raymq.client.connection import Connection
from raymq.client.message import ReceivedMessage
from raymq.client.pop import pop_consumer_engine
from raymq.client.pop.pop_buffer import ReceiveCall
from raymq.client.pop.pop_consumer_engine import PopConsumerEngine
from raymq.client.pop.pop_requests import PopRequests, PopSource
from tests.polling import poll_until
from tests.received_messages import message
from tests.unit.actors.clock import FakeClock

HOUR_MS = 3_600_000


@pytest.fixture
def mq() -> Iterator[Connection]:
    with Connection(["127.0.0.1:1"]) as connection:
        yield connection


class OneMessageRequests(PopRequests):
    """Requests in which every pop returns one message."""

    async def pop(
        self, source: PopSource, room: int, invisible_ms: int, *, begun: bool = False
    ) -> tuple[list[ReceivedMessage], list[ReceivedMessage]]:
        return [message(0)], []


class OneMessageEngine(PopConsumerEngine):
    def __init__(self, mq: Connection) -> None:
        super().__init__(mq, "g", {}, OneMessageRequests(mq, "g", {}, ordered=False, max_reconsume_times=16))

    async def pop(self, invisible_ms: int) -> None:
        await self._keep_popped(("broker-a", "t"), 1, invisible_ms)

    def timers(self) -> int:
        scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        return sum(not timer.cancelled() for timer in scheduled)


def run(work: object) -> None:
    """Run on an event loop whose timers can be counted."""
    loop = asyncio.SelectorEventLoop()
    try:
        loop.run_until_complete(work)  # type: ignore[arg-type]
    finally:
        loop.close()


def test_cancelled_receive_gets_no_message(mq: Connection) -> None:
    async def given_up() -> None:
        popping, receiver = OneMessageEngine(mq), ReceiveCall()
        await popping.pop(HOUR_MS)
        receiver.has_given_up = True
        popping.take_back(receiver)
        assert await popping.receive(8, HOUR_MS, 5.0, receiver) == []
        assert popping._received(8, HOUR_MS, receiver) == []
        assert popping._handed == {}
        assert len(popping._received(8, HOUR_MS, ReceiveCall())) == 1, "the next one gets it"

    run(given_up())


def test_messages_popped_before_a_machine_sleep_are_dropped(mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cover a regression: the message was received although its lease had ended during the sleep."""

    async def sleep() -> None:
        clock = FakeClock()
        monkeypatch.setattr(pop_consumer_engine, "boottime", clock)
        popping = OneMessageEngine(mq)
        await popping.pop(HOUR_MS)
        clock.advance(HOUR_MS / 1000)
        assert popping._received(8, HOUR_MS, ReceiveCall()) == []
        await popping.pop(HOUR_MS)
        assert len(popping._received(8, HOUR_MS, ReceiveCall())) == 1

    run(sleep())


def test_many_pops_use_one_timer(mq: Connection) -> None:
    async def many() -> None:
        popping, before = OneMessageEngine(mq), OneMessageEngine(mq).timers()
        for invisible_ms in [HOUR_MS, 2 * HOUR_MS, HOUR_MS // 2] * 10:
            await popping.pop(invisible_ms)
            receiver = ReceiveCall()
            assert popping._received(8, invisible_ms, receiver)
            popping.arrived(receiver)
        assert popping.timers() == before + 1
        await popping.stop(0.0)
        assert popping.timers() == before, "a consumer that is closed has none"

    run(many())


def test_timer_moves_on_to_the_next_late_message(mq: Connection) -> None:
    async def late_one_after_the_other() -> None:
        popping = OneMessageEngine(mq)
        await popping.pop(HOUR_MS)
        await popping.pop(1)
        first = popping._look_at
        await asyncio.to_thread(poll_until, lambda: popping._look_at != first)
        assert popping._look_at == popping._kept.next_late_at
        for work in list(popping._returns):
            work.cancel()

    run(late_one_after_the_other())
