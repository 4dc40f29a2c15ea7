"""Giving failed messages back: which answers end it, over a real server and connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from raymq.actors.errors import (
    GroupNotFound,
    MessageExpired,
    MessageNotFound,
    PermissionDenied,
    RayMQError,
    ServerBusy,
    StoreCorrupt,
    StoreFailed,
    StoreFull,
    TopicNotFound,
)
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire import error_codec
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.send_headers import ConsumerSendMsgBack
from raymq.client.push import send_back_client
from raymq.client.push.failures import CallFailure
from raymq.client.push.send_back_client import SendBackClient, SendBackResult
from tests.wire_server import serving

QUEUE = MessageQueue("t", "broker-a", 0)
MESSAGE: Any = SimpleNamespace(topic="t", physical_offset=17, message_id="A" * 32, queue=QUEUE, queue_offset=5)

FAILURE = CallFailure(0, "ValueError", "ValueError: bad")
GIVEN_UP = SendBackResult(given_up=True)


class RouteCache:
    """Where broker-a is: topics whose names are in `gone` have no route."""

    def __init__(self, address: str, gone: set[str]) -> None:
        self._address = address
        self._gone = gone

    async def get(self, topic: str, *, fresh: bool = False) -> Any:
        if topic in self._gone:
            raise TopicNotFound(topic)
        return SimpleNamespace(addresses={"broker-a": self._address})


def given_back(
    answers: list[Callable[[Command], Command]], gone: frozenset[str] = frozenset()
) -> tuple[SendBackClient, SendBackResult, list[Any], list[ConsumerSendMsgBack]]:
    """What becomes of a message whose broker answers so, one after the other, and the last one for ever."""
    asked: list[ConsumerSendMsgBack] = []
    told: list[Any] = []

    def handler(_: object, request: Command) -> Command:
        asked.append(ConsumerSendMsgBack.read(request))
        return answers[min(len(asked), len(answers)) - 1](request)

    async def run() -> tuple[SendBackClient, SendBackResult]:
        async with serving({RequestCode.CONSUMER_SEND_MSG_BACK: handler}) as (_, address):
            pool = ConnectionPool()
            try:
                mq: Any = SimpleNamespace(routes=RouteCache(address, set(gone)), pool=pool)
                back = SendBackClient(mq, "g", lambda *what: told.append(what))
                async with asyncio.timeout(30):
                    return back, await back(MESSAGE, FAILURE)
            finally:
                await pool.close()

    back, fate = asyncio.run(run())
    return back, fate, told, asked


def error(each: Exception) -> Callable[[Command], Command]:
    return lambda request: error_codec.error_response(request, each)


def stored(**fields: object) -> Callable[[Command], Command]:
    return lambda request: request.response(ResponseCode.SUCCESS, fields)


DEFINITE = [
    MessageExpired("gone"),
    MessageNotFound("gone"),
    GroupNotFound("g"),
    PermissionDenied("no"),
    StoreCorrupt("/x", 1, "bad CRC"),
]


@pytest.mark.parametrize("each", DEFINITE, ids=lambda each: type(each).__name__)
def test_what_stays_so_ends_it_and_is_told(each: RayMQError, caplog: pytest.LogCaptureFixture) -> None:
    """Fault 13.4: it was asked for ever."""
    back, fate, told, asked = given_back([error(each)])
    assert (fate, len(asked), back.given_up) == (GIVEN_UP, 1, 1)
    assert [(queue, offset, type(reason)) for queue, offset, reason in told] == [(QUEUE, 5, type(each))]
    assert MESSAGE.message_id in caplog.text


def test_what_was_set_aside_ends_it_and_is_told() -> None:
    back, fate, told, asked = given_back([stored(deadLetter=False, raymqSetAside="properties: too long")])
    assert (fate, len(asked), back.given_up) == (GIVEN_UP, 1, 1)
    assert "properties: too long" in str(told[0][2])


@pytest.mark.parametrize("each", [ServerBusy("later"), StoreFull("full"), StoreFailed("disk"), OSError("what")])
def test_what_may_pass_is_asked_again(each: Exception) -> None:
    back, fate, told, asked = given_back([error(each), error(each), stored(deadLetter=True)])
    assert (fate, len(asked), back.given_up, told) == (SendBackResult(dead=True), 3, 0, [])


def test_an_error_without_a_meaning_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_back_client, "_MAX_REFUSALS", 3)
    back, fate, _, asked = given_back([error(KeyError("a bug"))])
    assert (fate, len(asked), back.given_up) == (GIVEN_UP, 3, 1)


def test_a_broker_is_found_though_the_topic_was_deleted() -> None:
    back, _, _, asked = given_back([stored(deadLetter=False)], gone=frozenset({"t"}))
    assert (len(asked), back.given_up) == (1, 0)


def test_a_send_back_carries_the_reason_and_brings_the_wait() -> None:
    back, fate, _, asked = given_back([stored(deadLetter=False, raymqDelayMillis=10_000)])
    assert (asked[0].failure, fate) == ("ValueError: bad", SendBackResult(delay_seconds=10.0))
    assert back.given_up == 0


@pytest.mark.parametrize("wait", ["", "-1", "x", "\u0661"])
def test_a_wait_that_is_no_number_is_ignored(wait: str) -> None:
    _, fate, _, _ = given_back([stored(deadLetter=False, raymqDelayMillis=wait)])
    assert fate == SendBackResult()
