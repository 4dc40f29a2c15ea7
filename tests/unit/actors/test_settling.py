"""When an answer goes out: at once where nothing has to be waited for, without a task of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from raymq.actors.broker.context import BrokerContext
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.frame import Command


def context(durable: Callable[[], Awaitable[SendStatus]] | None, announced: list[str]) -> BrokerContext:
    async def announce() -> None:
        announced.append("announced")

    async def settings_durable() -> None:
        announced.append("durable")

    unused = cast("Any", None)
    fields = dict.fromkeys(BrokerContext.__dataclass_fields__, unused) | {
        "durable": durable,
        "announce": announce,
        "settings_durable": settings_durable,
    }
    return BrokerContext(**fields)


def answer(status: SendStatus) -> Command:
    return Command(0, {"status": status.value})


def test_nothing_to_wait_for_is_answered_in_place() -> None:
    assert context(None, []).when_durable(answer) == answer(SendStatus.SEND_OK)


async def test_a_new_topic_is_announced_first() -> None:
    announced: list[str] = []
    waiting = context(None, announced).when_durable(answer, new_topic=True)
    assert not isinstance(waiting, Command)
    assert await waiting == answer(SendStatus.SEND_OK)
    assert announced == ["durable", "announced"]


async def test_the_status_is_that_of_the_flush() -> None:
    async def flush() -> SendStatus:
        return SendStatus.FLUSH_DISK_TIMEOUT

    waiting = context(flush, []).when_durable(answer)
    assert not isinstance(waiting, Command)
    assert await waiting == answer(SendStatus.FLUSH_DISK_TIMEOUT)
