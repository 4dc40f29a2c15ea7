"""Test which objects a listener may be, and that an error fails only its own call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from raymq.client import ConsumeResult
from raymq.client.push.listener import ListenerRunner
from tests.received_messages import levels_of

OK = ConsumeResult.SUCCESS


async def succeed(messages: list[Any]) -> ConsumeResult:
    await asyncio.sleep(0)
    return OK


class CallableObject:
    async def __call__(self, messages: list[Any]) -> ConsumeResult:
        return await succeed(messages)


class PlainAwaitable:
    """An awaitable that is not a coroutine."""

    def __await__(self) -> Iterator[Any]:
        yield from asyncio.sleep(0).__await__()
        return OK


def returns_an_awaitable(messages: list[Any]) -> Awaitable[ConsumeResult]:
    return PlainAwaitable()  # type: ignore[return-value]


@pytest.mark.parametrize(
    "listener",
    [succeed, CallableObject(), lambda messages: succeed(messages), returns_an_awaitable],
    ids=["coroutine function", "object", "lambda", "returns an awaitable"],
)
def test_listener_that_returns_an_awaitable_is_awaited(listener: Any) -> None:
    runner = ListenerRunner(listener)
    try:
        assert levels_of(runner.call([1, 2])) == [None, None]  # type: ignore[list-item]
    finally:
        runner.close()


def test_listener_may_remove_messages_from_its_list() -> None:
    """Cover a regression: removed messages were never finished, and stopped the queue at 1,000."""
    messages: list[Any] = [1, 2, 3]

    def all_done(mine: list[Any]) -> ConsumeResult:
        while mine:
            mine.pop()
        return OK

    def each_done(mine: list[Any]) -> list[ConsumeResult]:
        results = []
        while mine:
            results.append(ConsumeResult.RECONSUME_LATER if mine.pop(0) == 2 else OK)
        return results

    assert levels_of(ListenerRunner(all_done).call(messages)) == [None, None, None]
    assert levels_of(ListenerRunner(each_done).call(messages)) == [None, 0, None]
    assert messages == [1, 2, 3]


@pytest.mark.parametrize(
    "error", [ValueError(), SystemExit(1), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()], ids=repr
)
def test_async_listener_error_fails_only_its_own_call(error: BaseException) -> None:
    async def listener(messages: list[Any]) -> ConsumeResult:
        await asyncio.sleep(0.001)
        if messages == ["bad"]:
            raise error
        return OK

    runner = ListenerRunner(listener)
    try:
        with ThreadPoolExecutor(4) as pool:
            calls = list(pool.map(runner.call, [["bad"] if n % 3 == 0 else ["good"] for n in range(60)]))
        assert [levels_of(each) for each in calls] == [[0] if n % 3 == 0 else [None] for n in range(60)]
        assert runner.loop is not None
        assert runner.loop.failures == 0
    finally:
        runner.close()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_is_caller_is_true_only_within_a_listener_call(asynchronous: bool) -> None:
    seen: list[bool] = []

    def plain(_: list[Any]) -> ConsumeResult:
        seen.append(runner.is_caller)
        return OK

    async def awaited(messages: list[Any]) -> ConsumeResult:
        return await asyncio.to_thread(plain, messages)

    runner = ListenerRunner(awaited if asynchronous else plain)
    try:
        thread = threading.Thread(target=runner.call, args=([1],))
        thread.start()
        thread.join()
        assert seen == [True]
        assert not runner.is_caller
    finally:
        runner.close()
