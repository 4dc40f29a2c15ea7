"""Test that sends create a topic once, and that no send waits longer than its timeout."""

from __future__ import annotations

import asyncio
import gc

import pytest

from raymq.actors.errors import BrokerUnavailable, Timeout, TopicNotFound
from raymq.actors.protocol import TopicRoute
from raymq.actors.sending.send_plan import was_never_sent
from raymq.actors.sending.topic_creation import TopicCreator

ROUTE = TopicRoute("t", (), {})


class Brokers:
    """Answer when the test says so, or time out."""

    def __init__(self) -> None:
        self.budgets: list[float] = []
        self.answer = asyncio.get_running_loop().create_future()

    async def make(self, topic: str, timeout: float) -> TopicRoute:
        self.budgets.append(timeout)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(self.answer)
        except TimeoutError as error:
            raise Timeout("broker-a", f"no answer within {timeout} s") from error
        return ROUTE


async def test_short_timeout_holds_while_another_send_creates_topic() -> None:
    brokers = Brokers()
    topics = TopicCreator(brokers.make)
    patient = asyncio.ensure_future(topics.made("t", 30.0))
    await asyncio.sleep(0)
    with pytest.raises(BrokerUnavailable, match=r"not created within 0\.01 s") as refused:
        await topics.made("t", 0.01)
    assert was_never_sent(refused.value), "so the message is surely not stored"
    brokers.answer.set_result(None)
    assert await patient is ROUTE
    assert len(brokers.budgets) == 1, "both waited for the same"


async def test_longer_timeout_continues_after_shorter_one() -> None:
    brokers = Brokers()
    topics = TopicCreator(brokers.make)
    hasty = asyncio.ensure_future(topics.made("t", 0.01))
    await asyncio.sleep(0)
    patient = asyncio.ensure_future(topics.made("t", 30.0))
    with pytest.raises(BrokerUnavailable):
        await hasty
    await asyncio.sleep(0.01)
    brokers.answer.set_result(None)
    assert await patient is ROUTE
    assert brokers.budgets[0] < 0.011
    assert brokers.budgets[1] > 20.0


async def test_refused_creation_fails_all_waiting_sends() -> None:
    async def refuse(topic: str, timeout: float) -> TopicRoute:
        raise TopicNotFound(f"topic {topic} does not exist")

    topics = TopicCreator(refuse)
    results = await asyncio.gather(*(topics.made("t", 1.0) for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in results] == [TopicNotFound] * 3


async def test_cancelled_waiter_causes_no_asyncio_warning() -> None:
    """Guard against logs of exceptions that were never retrieved."""
    brokers, complaints = Brokers(), list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
    topics = TopicCreator(brokers.make)
    waiting = asyncio.ensure_future(topics.made("t", 0.01))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.sleep(0.03)
    gc.collect()
    assert complaints == []
