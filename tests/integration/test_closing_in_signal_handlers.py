"""Test closing clients in a signal handler that interrupts a close, a start or a send of the same client."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import time
from inspect import isawaitable
from typing import Any

import pytest

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server import Handler, ServerConnection
from raymq.client import Admin, ClientClosed, Connection, Message, Producer, SendStatus
from raymq.client.produce import batcher
from raymq.client.produce.message_batch import MessageBatch
from tests.integration.conftest import Services

pytestmark = pytest.mark.integration

#: Seconds that the interrupted call takes, and that a handler would take which waits for it.
WORK_SECONDS, FOREVER = 2.0, 60.0

BEGIN = f"""
    import os, signal, sys, threading, time
    from raymq.client import Connection, ConsumeResult, Message, Producer, PushConsumer

    def interrupt(close):
        def handle(*_):
            began = time.monotonic()
            close()
            print("handled", time.monotonic() - began, flush=True)

        signal.signal(signal.SIGTERM, handle)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        close()
        print("closed", flush=True)

    mq = Connection([sys.argv[1]])
    producer = Producer(mq, "p", timeout={FOREVER})
    producer.send(Message("t", b"x"))
"""

CONSUMER = f"""
    begun = threading.Event()

    def listen(messages):
        begun.set()
        time.sleep({WORK_SECONDS})
        return ConsumeResult.SUCCESS

    consumer = PushConsumer(mq, "g", {{"t": "*"}}, listen)
    consumer.start()
    begun.wait(30)
    interrupt(lambda: consumer.shutdown({FOREVER}))
"""

CONNECTION = CONSUMER.replace(f"consumer.shutdown({FOREVER})", "mq.close()")

PRODUCER = f"""
    producer.send_async(Message("t", b"x"))
    interrupt(lambda: producer.close({FOREVER}))
"""


def delay_handler(handler: Handler) -> Handler:
    async def handle(connection: ServerConnection, request: Command) -> Command | None:
        await asyncio.sleep(WORK_SECONDS)
        answer = handler(connection, request)
        return await answer if isawaitable(answer) else answer

    return handle


@pytest.mark.parametrize(
    "close",
    [CONSUMER, pytest.param(CONNECTION, marks=pytest.mark.long), pytest.param(PRODUCER, marks=pytest.mark.long)],
    ids=["consumer", "connection", "producer"],
)
def test_close_in_handler_does_not_wait_for_interrupted_close(services: Services, admin: Admin, close: str) -> None:
    del admin
    script = textwrap.dedent(BEGIN) + textwrap.dedent(close)
    for broker in services.brokers.values():
        handlers = broker._server.handlers
        broker._server.handlers = {
            **handlers,
            RequestCode.APPEND_RECORDS: delay_handler(handlers[RequestCode.APPEND_RECORDS]),
        }
    done = subprocess.run(
        [sys.executable, "-c", script, services.name_server.address],
        input="\n",
        capture_output=True,
        text=True,
        timeout=FOREVER / 2,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    handled, closed = done.stdout.splitlines()
    assert handled.startswith("handled ")
    assert closed == "closed"


STARTING = """
    import os, signal, sys, threading
    from raymq.client import ClientClosed, Connection, ConsumeResult, PushConsumer

    mq = Connection([sys.argv[1]])
    consumer = PushConsumer(mq, "g", {{"t": "*"}}, lambda messages: ConsumeResult.SUCCESS)

    def handle(*_):
        {close}
        print("handled", flush=True)

    signal.signal(signal.SIGTERM, handle)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    try:
        consumer.start()
    except ClientClosed:
        pass
    print("ended" if consumer.wait(20) else "runs", consumer.health.running)
"""


@pytest.mark.parametrize("close", [f"consumer.shutdown({FOREVER})", "mq.close()"])
def test_close_in_handler_does_not_wait_for_interrupted_start(services: Services, admin: Admin, close: str) -> None:
    """The handler runs on the thread that is in `start`, so it must not wait for `start`."""
    del admin
    for broker in services.brokers.values():
        handlers = broker._server.handlers
        broker._server.handlers = {**handlers, RequestCode.HEART_BEAT: delay_handler(handlers[RequestCode.HEART_BEAT])}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(STARTING).format(close=close), services.name_server.address],
        capture_output=True,
        text=True,
        timeout=FOREVER / 2,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout.split()) == (0, "", ["handled", "ended", "False"])


GATHERING = """
    import os, signal, sys, threading
    from raymq.client import ClientClosed, Connection, Message, Producer

    mq = Connection([sys.argv[1]])
    producer = Producer(mq, "p", linger=0.005)
    message = Message("t", b"x" * 100)
    sent = [producer.send_async(message)]
    sent[0].result()
    signal.signal(signal.SIGTERM, lambda *_: {close}())
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    try:
        while True:
            sent.append(producer.send_async(message))
    except ClientClosed:
        pass
    print(all(future.exception(20) is None for future in sent))
"""


@pytest.mark.parametrize("close", ["mq.close", pytest.param("producer.close", marks=pytest.mark.long)])
def test_close_in_handler_does_not_wait_for_gathering_sends(services: Services, admin: Admin, close: str) -> None:
    """The handler ran on the thread that held the lock of the gathered messages: the program hung for ever."""
    del admin
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(GATHERING).format(close=close), services.name_server.address],
        capture_output=True,
        text=True,
        timeout=FOREVER / 2,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "True\n")


@pytest.mark.parametrize("what", ["producer", "connection"])
def test_close_in_handler_leaves_the_loop_free(
    services: Services, admin: Admin, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The loop waited for the lock of the interrupted send, and the handler for the loop until its time-outs."""
    del admin
    took: list[float] = []

    class Interrupted(MessageBatch):
        """A batch during whose creation a signal handler closes."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            if self.topic == "u":
                began = time.monotonic()
                (producer if what == "producer" else mq).close()
                took.append(time.monotonic() - began)

    drain = Producer._drain

    def drain_late(self: Producer, timeout: float) -> bool:
        time.sleep(0.2)  # meanwhile the time of the first batch is over, and the loop wants the lock
        return drain(self, timeout)

    monkeypatch.setattr(Producer, "_drain", drain_late)
    monkeypatch.setattr(batcher, "MessageBatch", Interrupted)
    with Connection([services.name_server.address]) as mq:
        producer = Producer(mq, "p", linger=0.05)
        sent = producer.send_async(Message("t", b"x"))
        with pytest.raises(ClientClosed):
            producer.send_async(Message("u", b"x"))
        assert sent.result(20).status is SendStatus.SEND_OK
    assert took[0] < 0.9, "it waited for a time-out"
