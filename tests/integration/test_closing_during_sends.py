"""Test closing a connection or a producer while sends of other threads and tasks wait for answers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from raymq.actors.wire.codes import RequestCode
from raymq.client import Admin, ClientClosed, Connection, Message, MessageQueue, OutcomeUnknown, Producer
from tests.integration.conftest import Services

pytestmark = pytest.mark.integration

QUEUE = MessageQueue("t", "broker-a", 0)
MESSAGE = Message("t", b"x")
SENDS: dict[str, Callable[[Producer], object]] = {
    "send": lambda producer: producer.send(MESSAGE, queue=QUEUE),
    "send_batch": lambda producer: producer.send_batch([MESSAGE], queue=QUEUE),
    "send_table": lambda producer: producer.send_table("t", pa.table({"b": ["x"]}), "b", queue=QUEUE),
    "asend": lambda producer: asyncio.run(producer.asend(MESSAGE, queue=QUEUE)),
    "asend_batch": lambda producer: asyncio.run(producer.asend_batch([MESSAGE], queue=QUEUE)),
}
FOREVER = 60.0


class LateAnswers:
    """Delays broker-a's answers to appends by some seconds, or until `come` is called."""

    def __init__(self, services: Services, seconds: float) -> None:
        self.stored = threading.Event()
        self._seconds = seconds
        self._loop = services.loop.loop
        self._wanted = asyncio.Event()
        server = services.brokers["broker-a"]._server
        codes = (RequestCode.APPEND_RECORDS, RequestCode.APPEND_ONE, RequestCode.APPEND_ONE_SEQUENCED)
        server.handlers = {**server.handlers, **{code: self._late(server.handlers[code]) for code in codes}}

    def _late(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        async def late(*arguments: Any) -> Any:
            answer = handler(*arguments)
            answer = await answer if asyncio.isfuture(answer) or asyncio.iscoroutine(answer) else answer
            self.stored.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await self._wanted.wait()
            return answer

        return late

    def come(self) -> None:
        self._loop.call_soon_threadsafe(self._wanted.set)


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("how", SENDS)
@pytest.mark.parametrize("what", ["connection", "producer"])
def test_close_waits_for_sends_of_other_threads_and_tasks(
    services: Services, admin: Admin, tmp_path: Path, how: str, what: str, *, idempotent: bool, keeps: bool
) -> None:
    """Closing the connection ended these sends with ClientClosed, although their messages were stored."""
    del admin
    with Connection([services.name_server.address]) as mq, ThreadPoolExecutor(1) as pool:
        outbox = tmp_path / "outbox" if keeps else None
        producer = Producer(mq, "p", timeout=FOREVER, idempotent=idempotent, outbox=outbox)
        producer.send(MESSAGE, queue=QUEUE)
        late = LateAnswers(services, 0.3)
        sending = pool.submit(SENDS[how], producer)
        assert late.stored.wait(FOREVER)
        (mq if what == "connection" else producer).close()
        assert sending.result(10)
        with pytest.raises(ClientClosed):
            SENDS[how](producer)


@pytest.mark.parametrize("how", SENDS)
@pytest.mark.parametrize("retries", [0, 2])
def test_send_aborted_by_close_raises_outcome_unknown(
    services: Services, mq: Connection, admin: Admin, how: str, retries: int
) -> None:
    closed = Connection([services.name_server.address])
    with ThreadPoolExecutor(1) as pool:
        producer = Producer(closed, "p", timeout=FOREVER, retries=retries)
        producer.send(MESSAGE, queue=QUEUE)
        late = LateAnswers(services, FOREVER)
        sending = pool.submit(SENDS[how], producer)
        assert late.stored.wait(FOREVER)
        producer.close(timeout=0.0)
        closed.close()
        with pytest.raises(OutcomeUnknown):
            sending.result(10)
    late.come()
    assert admin.topic_stats("t")[QUEUE].max_offset == 2, "it is stored"
    with pytest.raises(ClientClosed):
        Producer(closed, "p")


def test_close_on_the_loop_does_not_wait_for_its_own_thread(mq: Connection, admin: Admin) -> None:
    """A coroutine of the connection's loop, such as an async listener, may close a producer without `aclose`."""
    del admin
    producer = Producer(mq, "p")

    async def send_and_close() -> bool:
        await producer.asend(Message("t", b"x"))
        flushed = producer.flush()
        producer.close()
        return flushed

    assert mq.run(send_and_close(), 9.0)
    with pytest.raises(ClientClosed):
        producer.send(Message("t", b"y"))
