"""Test coroutine listeners on the event loop that called `astart`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

import pytest

from raymq.client import Admin, Connection, ConsumeResult, Message, Producer, PushConsumer

pytestmark = pytest.mark.integration


def send(mq: Connection, count: int = 1) -> None:
    with Producer(mq, "p") as producer:
        for _ in range(count):
            producer.send(Message("t", b"x"))


@pytest.mark.parametrize("ordered", [False, True])
def test_coroutine_listener_runs_on_caller_event_loop(mq: Connection, admin: Admin, ordered: bool) -> None:
    del admin
    send(mq, 5)

    async def main() -> list[asyncio.AbstractEventLoop]:
        pool = asyncio.Semaphore(1)  # bound to the loop on which it is first waited for
        done: asyncio.Queue[asyncio.AbstractEventLoop] = asyncio.Queue()

        async def listener(messages: list[Any]) -> ConsumeResult:
            async with pool:
                await asyncio.sleep(0.01)
            for _ in messages:
                done.put_nowait(asyncio.get_running_loop())
            return ConsumeResult.SUCCESS

        async with pool, PushConsumer(mq, "g", {"t": "*"}, listener, ordered=ordered):
            pool.release()
            loops = [await asyncio.wait_for(done.get(), 20) for _ in range(5)]
            await pool.acquire()
        return [asyncio.get_running_loop(), *loops]

    assert len(set(asyncio.run(main()))) == 1


def test_plain_start_runs_listener_on_separate_loop(mq: Connection, admin: Admin) -> None:
    del admin
    send(mq)
    loops = []

    async def listener(_: list[Any]) -> ConsumeResult:
        loops.append(asyncio.get_running_loop())
        called.set()
        return ConsumeResult.SUCCESS

    called = threading.Event()
    with PushConsumer(mq, "g", {"t": "*"}, listener):
        assert called.wait(20)
    assert loops[0] is not mq.loop


def test_blocking_call_on_event_loop_names_async_call(mq: Connection, admin: Admin) -> None:
    del admin

    async def listener(_: list[Any]) -> ConsumeResult:
        return ConsumeResult.SUCCESS

    async def main() -> None:
        consumer = PushConsumer(mq, "g", {"t": "*"}, listener)
        await consumer.astart()
        began = time.monotonic()
        with pytest.raises(RuntimeError, match=r"use await ashutdown\(\)"):
            consumer.shutdown()
        with pytest.raises(RuntimeError, match=r"use await await_\(\)"):
            consumer.wait()
        assert time.monotonic() - began < 5
        assert consumer.health.running
        await consumer.ashutdown()
        consumer.shutdown()  # no error: the consumer has ended
        assert consumer.wait()

    asyncio.run(main())


def test_coroutine_listener_can_shut_down_its_consumer(mq: Connection, admin: Admin) -> None:
    del admin
    send(mq)

    async def main() -> bool:
        async def listener(_: list[Any]) -> ConsumeResult:
            consumer.shutdown()
            return ConsumeResult.SUCCESS

        consumer = PushConsumer(mq, "g", {"t": "*"}, listener)
        await consumer.astart()
        return await consumer.await_(20)

    assert asyncio.run(main())


def test_closed_event_loop_fails_listener_calls_with_reason(
    mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    """Cover a regression: calls hung until the consumer's timeout or were lost."""
    del admin
    called = threading.Event()

    async def listener(_: list[Any]) -> ConsumeResult:
        called.set()
        with contextlib.suppress(asyncio.CancelledError):  # by the end of `asyncio.run`
            await asyncio.sleep(60)
        return ConsumeResult.RECONSUME_LATER

    consumer = PushConsumer(mq, "g", {"t": "*"}, listener)

    async def main() -> None:
        await consumer.astart()
        await asyncio.to_thread(send, mq)
        await asyncio.to_thread(called.wait, 20)

    asyncio.run(main())
    deadline = time.monotonic() + 20
    while "is closed" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "the event loop on which the consumer was started is closed" in caplog.text
    assert consumer.health.running
    began = time.monotonic()
    consumer.shutdown()
    assert time.monotonic() - began < 10


def test_connection_close_on_event_loop_does_not_block(mq: Connection, admin: Admin) -> None:
    """Close while a listener call needs the loop; its message is redelivered later."""
    del admin
    send(mq)

    async def main() -> float:
        called = asyncio.Event()

        async def listener(_: list[Any]) -> ConsumeResult:
            called.set()
            await asyncio.sleep(30)
            return ConsumeResult.SUCCESS

        await PushConsumer(mq, "g", {"t": "*"}, listener).astart()
        await asyncio.wait_for(called.wait(), 20)
        began = time.monotonic()
        mq.close()
        return time.monotonic() - began

    assert asyncio.run(main()) < 8
