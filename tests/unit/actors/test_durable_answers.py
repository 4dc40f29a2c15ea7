"""Test when a broker answers: at once, or after the flush and the announcement of a new topic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from raymq.actors.broker.context import BrokerContext
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.frame import Command


def make_context(durable: Callable[[], Awaitable[SendStatus]] | None, announced: list[str]) -> BrokerContext:
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


def test_answer_without_flush_is_immediate() -> None:
    assert make_context(None, []).when_durable(answer) == answer(SendStatus.SEND_OK)


async def test_new_topic_is_announced_before_answer() -> None:
    announced: list[str] = []
    waiting = make_context(None, announced).when_durable(answer, new_topic=True)
    assert not isinstance(waiting, Command)
    assert await waiting == answer(SendStatus.SEND_OK)
    assert announced == ["durable", "announced"]


async def test_answer_has_status_of_flush() -> None:
    async def flush() -> SendStatus:
        return SendStatus.FLUSH_DISK_TIMEOUT

    waiting = make_context(flush, []).when_durable(answer)
    assert not isinstance(waiting, Command)
    assert await waiting == answer(SendStatus.FLUSH_DISK_TIMEOUT)
