"""Test sends of a shared producer whose actor dies, so that they are retried at its successor."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from raymq.actors.errors import (
    Attempt,
    ConnectionLost,
    NotStored,
    OutcomeUnknown,
    PermissionDenied,
    RayMQError,
)
from raymq.actors.protocol import MessageQueue, RecordPositions, SendStatus, TopicRoute
from raymq.actors.sending.send_plan import SendParameters
from raymq.actors.sending.sender import SendOutcome
from raymq.client.produce import shared_producer
from raymq.client.produce.shared_producer import SharedSender

QUEUE = MessageQueue("t", "broker-b", 0)
DIED = ConnectionLost("producer", "the actor is dead")
REFUSED = Attempt("broker-b", QUEUE, "SERVICE_NOT_AVAILABLE", "the disk is full", 0.1)


class RouteCache:
    async def get(self, topic: str, **_: object) -> TopicRoute:
        return TopicRoute(topic, (), {"broker-a": "a:1", "broker-b": "b:1", "broker-c": "c:1"})


def send_outcome() -> SendOutcome:
    return SendOutcome(
        SendStatus.SEND_OK, QUEUE, "b:1", RecordPositions("t", *(np.zeros(1, np.int64) for _ in range(3)))
    )


def send(monkeypatch: pytest.MonkeyPatch, terms: SendParameters, *answers: SendOutcome | RayMQError) -> SendOutcome:
    remaining: Iterator[SendOutcome | RayMQError] = iter(answers)

    async def call_async(*_: object, **__: object) -> SendOutcome:
        answer = next(remaining)
        if isinstance(answer, RayMQError):
            raise answer
        return answer

    monkeypatch.setattr(shared_producer.actor_calls, "call_async", call_async)
    monkeypatch.setattr(shared_producer, "make_producer", lambda *_: object())
    mq: Any = SimpleNamespace(namespace="n", name_servers=["n:1"], tls=None, routes=RouteCache())
    sends = SharedSender(mq, "g", None)
    return asyncio.run(sends.send("t", bytearray(b"r"), np.ones(1, np.int32), terms))


@pytest.mark.parametrize("refusal", [NotStored("not stored", [REFUSED]), PermissionDenied("t may not be written")])
def test_refusal_after_an_actor_death_is_outcome_unknown(monkeypatch: pytest.MonkeyPatch, refusal: RayMQError) -> None:
    with pytest.raises(OutcomeUnknown) as raised:
        send(monkeypatch, SendParameters(5.0, 2), DIED, refusal)
    assert len(raised.value.attempts) == 2
    assert raised.value.__cause__ is refusal


def test_refusal_by_the_first_actor_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = NotStored("not stored", [REFUSED])
    with pytest.raises(NotStored) as raised:
        send(monkeypatch, SendParameters(5.0, 2), refusal)
    assert raised.value is refusal


def test_delayed_send_after_an_actor_death_doubts_all_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert send(monkeypatch, SendParameters(5.0, 2, delayed=True), DIED, send_outcome()).doubtful == (
        "broker-a",
        "broker-c",
    )
    assert send(monkeypatch, SendParameters(5.0, 2, delayed=True), send_outcome()).doubtful == ()
    assert send(monkeypatch, SendParameters(5.0, 2), DIED, send_outcome()).doubtful == ()
