"""Test sending failed messages back over a real connection: which answers end the attempts."""

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
from raymq.client.push import call_results
from raymq.client.push.call_results import SendBackClient, SendBackResult
from raymq.client.push.failures import CallFailure
from tests.wire_server import serving

QUEUE = MessageQueue("t", "broker-a", 0)
MESSAGE: Any = SimpleNamespace(topic="t", physical_offset=17, message_id="A" * 32, queue=QUEUE, queue_offset=5)

FAILURE = CallFailure(0, "ValueError", "ValueError: bad")
GIVEN_UP = SendBackResult(given_up=True)


class RouteCache:
    """Routes to broker-a; topics whose names are in `gone` have none."""

    def __init__(self, address: str, gone: set[str]) -> None:
        self._address = address
        self._gone = gone

    async def get(self, topic: str, *, fresh: bool = False) -> Any:
        if topic in self._gone:
            raise TopicNotFound(topic)
        return SimpleNamespace(addresses={"broker-a": self._address})


def send_back(
    answers: list[Callable[[Command], Command]], gone: frozenset[str] = frozenset()
) -> tuple[SendBackClient, SendBackResult, list[Any], list[ConsumerSendMsgBack]]:
    """Send a message back to a broker that gives these answers, repeating the last one."""
    requests: list[ConsumerSendMsgBack] = []
    reports: list[Any] = []

    def handler(_: object, request: Command) -> Command:
        requests.append(ConsumerSendMsgBack.read(request))
        return answers[min(len(requests), len(answers)) - 1](request)

    async def run() -> tuple[SendBackClient, SendBackResult]:
        async with serving({RequestCode.CONSUMER_SEND_MSG_BACK: handler}) as (_, address):
            pool = ConnectionPool()
            try:
                mq: Any = SimpleNamespace(routes=RouteCache(address, set(gone)), pool=pool)
                back = SendBackClient(
                    mq,
                    "g",
                    on_given_up=lambda *what: reports.append(what),
                    on_unreadable=lambda *what: reports.append(what),
                )
                async with asyncio.timeout(30):
                    return back, await back(MESSAGE, FAILURE)
            finally:
                await pool.close()

    back, result = asyncio.run(run())
    return back, result, reports, requests


def error_answer(each: Exception) -> Callable[[Command], Command]:
    return lambda request: error_codec.error_response(request, each)


def success_answer(**fields: object) -> Callable[[Command], Command]:
    return lambda request: request.response(ResponseCode.SUCCESS, fields)


DEFINITE = [
    MessageExpired("gone"),
    MessageNotFound("gone"),
    GroupNotFound("g"),
    PermissionDenied("no"),
    StoreCorrupt("/x", 1, "bad CRC"),
]


@pytest.mark.parametrize("each", DEFINITE, ids=lambda each: type(each).__name__)
def test_permanent_error_ends_the_send_back_and_is_reported(each: RayMQError, caplog: pytest.LogCaptureFixture) -> None:
    """Fault 13.4: the request was repeated forever."""
    back, result, reports, requests = send_back([error_answer(each)])
    assert (result, len(requests), back.given_up) == (GIVEN_UP, 1, 1)
    assert [(queue, offset, type(reason)) for queue, offset, reason in reports] == [(QUEUE, 5, type(each))]
    assert MESSAGE.message_id in caplog.text


def test_set_aside_answer_ends_the_send_back_and_is_reported() -> None:
    back, result, reports, requests = send_back(
        [success_answer(deadLetter=False, raymqSetAside="properties: too long")]
    )
    assert (result, len(requests), back.given_up) == (GIVEN_UP, 1, 1)
    assert "properties: too long" in str(reports[0][2])


@pytest.mark.parametrize("each", [ServerBusy("later"), StoreFull("full"), StoreFailed("disk"), OSError("what")])
def test_temporary_error_repeats_the_send_back(each: Exception) -> None:
    back, result, reports, requests = send_back(
        [error_answer(each), error_answer(each), success_answer(deadLetter=True)]
    )
    assert (result, len(requests), back.given_up, reports) == (SendBackResult(dead=True), 3, 0, [])


def test_unknown_error_is_repeated_a_limited_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_results, "_MAX_REFUSALS", 3)
    back, result, _, requests = send_back([error_answer(KeyError("a bug"))])
    assert (result, len(requests), back.given_up) == (GIVEN_UP, 3, 1)


def test_broker_is_found_after_its_topic_was_deleted() -> None:
    back, _, _, requests = send_back([success_answer(deadLetter=False)], gone=frozenset({"t"}))
    assert (len(requests), back.given_up) == (1, 0)


def test_send_back_has_the_reason_and_returns_the_delay() -> None:
    back, result, _, requests = send_back([success_answer(deadLetter=False, raymqDelayMillis=10_000)])
    assert (requests[0].failure, result) == ("ValueError: bad", SendBackResult(delay_seconds=10.0))
    assert back.given_up == 0


@pytest.mark.parametrize("wait", ["", "-1", "x", "\u0661"])
def test_invalid_delay_in_the_answer_is_ignored(wait: str) -> None:
    _, result, _, _ = send_back([success_answer(deadLetter=False, raymqDelayMillis=wait)])
    assert result == SendBackResult()
