"""Test callbacks of `send_async` that send, wait or raise."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest

from raymq.client import Admin, Connection, Message, Producer, SendResult
from tests.polling import poll_until

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("linger", [0.0, 0.005])
def test_callback_can_send_and_wait(mq: Connection, admin: Admin, linger: float) -> None:
    results: list[SendResult] = []
    problems: list[BaseException] = []
    with Producer(mq, "p", linger=linger) as producer:

        def again(sent: Future[SendResult]) -> None:
            try:
                results.append(producer.send(Message("t", b"in a callback"), queue=sent.result().queue))
            except BaseException as error:  # noqa: BLE001 - the test shows it
                problems.append(error)

        for _ in range(10):
            producer.send_async(Message("t", b"x")).add_done_callback(again)
        poll_until(lambda: len(results) + len(problems) == 10)
        assert problems == []
        late = producer.send_async(Message("t", b"x"))
        late.result(10)
        late.add_done_callback(again)
        poll_until(lambda: len(results) == 11)


@pytest.mark.parametrize("linger", [0.0, 0.005])
@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt()], ids=repr)
def test_callback_exception_does_not_end_event_loop(
    mq: Connection, admin: Admin, linger: float, error: BaseException
) -> None:
    with Producer(mq, "p", linger=linger) as producer:
        called = threading.Semaphore(0)

        def fails(_: Future[SendResult]) -> None:
            called.release()
            raise error

        for _ in range(5):
            producer.send_async(Message("t", b"x")).add_done_callback(fails)
        for _ in range(5):
            assert called.acquire(timeout=10)
        assert producer.send_async(Message("t", b"y")).result(10).queue_offset >= 0
        assert asyncio.run(producer.asend(Message("t", b"z"))).queue_offset >= 0
        assert mq.loop_thread is not None
        assert mq.loop_thread.failures == 0
