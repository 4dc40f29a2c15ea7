"""Test sends interrupted by a signal handler that sends, closes or raises: later sends must work.

A send in such a handler is refused, unless one step of the interpreter gathers its message.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType
from typing import Any

import pytest

from raymq.client import Admin, Connection, Message, MessageQueue, Producer, PullConsumer, SendResult, SendStatus
from raymq.client.errors import ClientClosed, NotStored, OutcomeUnknown
from raymq.client.produce import batcher
from raymq.client.produce.message_batch import MessageBatch
from tests.integration.conftest import Services

pytestmark = pytest.mark.integration

QUEUE = MessageQueue("t", "broker-a", 0)

HANDLER_SENDS = """
    import signal, sys, time
    from raymq.client import Connection, Message, NotStored, Producer

    mq = Connection([sys.argv[1]])
    producer = Producer(mq, "p", timeout=20.0, {options})
    sent, handling, refused = [], [], []

    def send():
        sent.append(producer.{send}(Message("t", b"x")))

    def handle(*_):
        if not handling:  # on a busy machine they would come faster than they are handled
            handling.append(True)
            try:
                send()
            except NotStored as error:
                refused.append(error)
            handling.clear()

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0011)
    until = time.monotonic() + 1.5
    try:
        while time.monotonic() < until and len(sent) < 3_000:
            send()
    finally:  # what fails is to be told, and not what the handler meets at the program's end
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    results = [each.result(20) if hasattr(each, "result") else each for each in sent if each is not None]
    assert len({{result.unique_key for result in results}}) == len(results)
    assert len({{(result.queue, result.queue_offset) for result in results}}) == len(results)
    assert all(not error.attempts and "set a threading.Event in the handler" in str(error) for error in refused)
    producer.{send}(Message("t", b"x"))
    mq.close()
    print("refused" if refused else "none")
"""


@pytest.mark.parametrize(
    ("send", "options"),
    [
        ("send", ""),
        ("send", "idempotent=True"),
        ("send_async", "linger=0.005"),
        ("send_async", ""),
        ("send_oneway", ""),
    ],
)
def test_send_in_handler_is_refused_or_gathered(services: Services, admin: Admin, send: str, options: str) -> None:
    """The handler waited for locks held by its own thread: the program hung for ever, whatever its timeouts."""
    del admin
    program = textwrap.dedent(HANDLER_SENDS).format(send=send, options=options)
    done = subprocess.run(
        [sys.executable, "-c", program, services.name_server.address],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "refused\n" or send == "send_async"


#: The functions of the batcher that begin a batch, and hand one to the loop.
HANDOVER_FUNCTIONS = ("_begin", "_take", "_wait_for_room")


def interrupt_at(step: int, files: tuple[str, ...], work: Callable[[], object], *functions: str) -> bool:
    """Do the work, interrupted after `step` lines of these files or functions; return whether it was interrupted.

    A real signal interrupts between calls only, not between any two lines. Lines inside `__del__` are not counted: an
    error there is ignored and the work continues. The garbage collector may call `__del__` anywhere.
    """
    left = step

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        code = frame.f_code
        if (
            not code.co_filename.endswith(files)
            or (functions and code.co_name not in functions)
            or any(each.f_code.co_name == "__del__" for each, _ in traceback.walk_stack(frame))
        ):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def test_interrupted_send_releases_its_queue(mq: Connection, admin: Admin) -> None:
    """An interrupted send kept the queue locked for ever: all later sends to it timed out."""
    del admin
    files = (
        "sending/direct_sender.py",
        "sending/partition_sequence.py",
        "wire/blocking_channel.py",
    )
    with Producer(mq, "p", idempotent=True, retries=0) as producer:
        producer.send(Message("t", b"first"), queue=QUEUE)
        step, longest = 0, 0.0
        while interrupt_at(step, files, lambda: producer.send(Message("t", b"interrupted"), queue=QUEUE)):
            began = time.monotonic()
            producer.send(Message("t", b"%d" % step), queue=QUEUE, timeout=10.0)
            longest = max(longest, time.monotonic() - began)
            step += 1
        assert step > 30
        assert longest < 9.0
        assert mq.channels._count(next(iter(mq.channels._idle))) <= 2, "interrupted sends give their places back"
    with PullConsumer(mq, "g") as pull:
        found = [message.body for message in pull.poll(QUEUE, 1_000)]
    assert [body for body in found if body.isdigit()] == [b"%d" % number for number in range(step)]


def test_interrupted_gathered_send_loses_no_other_message(mq: Connection, admin: Admin) -> None:
    """A batch that was taken and not yet handed over was never sent."""
    del admin
    with Producer(mq, "p", linger=0.002, buffer_bytes=2_000) as producer:

        def send() -> Future[SendResult]:
            return producer.send_async(Message("t", bytes(900)))

        step, sent = 0, [send()]
        while interrupt_at(
            step, ("produce/batcher.py",), lambda: [sent.append(send()) for _ in range(3)], *HANDOVER_FUNCTIONS
        ):
            sent.append(send())
            step += 1
        assert step > 10
        assert {future.result(10).status for future in sent} == {SendStatus.SEND_OK}
        assert producer.flush(10)


def test_send_in_handler_at_batch_start_is_refused(
    mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    del admin
    sent: list[Future[SendResult]] = []
    handlers: list[Callable[[], None]] = []

    class Interrupted(MessageBatch):
        """A batch whose creation is followed by a signal handler."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            if handlers:
                handlers.pop()()

    monkeypatch.setattr(batcher, "MessageBatch", Interrupted)
    with Producer(mq, "p", linger=3.0) as producer:

        def send(body: bytes, timeout: float) -> None:
            sent.append(producer.send_async(Message("t", body), queue=QUEUE, timeout=timeout))

        def send_in_handler() -> None:
            with pytest.raises(NotStored, match="signal handler"):
                send(b"in the handler", 11.0)
            with pytest.raises(NotStored, match="signal handler"):
                producer.send(Message("t", b"at once"), queue=QUEUE, timeout=10.0)

        for number in range(10):
            handlers.append(send_in_handler)
            send(b"%d" % (2 * number), 10.0)
            send(b"%d" % (2 * number + 1), 11.0)
        assert producer.flush()
        assert {future.result(10).queue for future in sent} == {QUEUE}
    with PullConsumer(mq, "g") as pull:
        found = [message.body for message in pull.poll(QUEUE, 1_000)]
    assert [body for body in found if body.isdigit()] == [b"%d" % number for number in range(20)]
    assert len(sent) == 20
    assert len(found) == 20


#: Sends that are awaited in a task, or later.
TASKS: dict[str, Callable[[Producer], object]] = {
    "asend": lambda producer: asyncio.run(producer.asend(Message("t", b"x"))),
    "asend_batch": lambda producer: asyncio.run(producer.asend_batch([Message("t", b"x")])),
    "send_async": lambda producer: producer.send_async(Message("t", b"x")).result(30),
}


@pytest.mark.parametrize("what", ["producer", "connection"])
@pytest.mark.parametrize("how", TASKS)
def test_close_in_handler_does_not_wait_for_starting_send(
    services: Services, admin: Admin, monkeypatch: pytest.MonkeyPatch, how: str, what: str
) -> None:
    """The send counted as pending, but continues only after the handler, which waited for it until its timeout."""
    del admin
    handover = "start" if how == "send_async" else "submit"
    hand_over = getattr(Connection, handover)
    took: list[float] = []

    def interrupted(self: Connection, *arguments: Any) -> Any:
        if not took:
            took.append(0.0)
            began = time.monotonic()
            (producer if what == "producer" else mq).close()
            took[0] = time.monotonic() - began
        return hand_over(self, *arguments)

    with Connection([services.name_server.address]) as mq:
        producer = Producer(mq, "p", timeout=30.0)
        producer.send(Message("t", b"first"))
        monkeypatch.setattr(Connection, handover, interrupted)
        if what == "producer":
            assert TASKS[how](producer)
        else:  # it could not begin any more
            with pytest.raises((ClientClosed, OutcomeUnknown)):
                TASKS[how](producer)
        assert took[0] < 9.0, "it waited for its time-out"
        with pytest.raises(ClientClosed):
            producer.send(Message("t", b"last"))


@pytest.mark.parametrize("send", ["send_async", "send_oneway"])
def test_blocking_call_in_handler_ends(mq: Connection, admin: Admin, send: str) -> None:
    """The loop waited for a lock of the future that the interrupted thread held: the handler hung."""
    del admin
    with Producer(mq, "p") as producer:
        producer.send(Message("t", b"first"))
        line = handled = 0

        def trace(_frame: FrameType, event: str, _: object) -> Any:
            nonlocal line, handled
            if event == "line":
                line += 1
                if line > handled:
                    handled = line
                    sys.settrace(None)
                    for _ in range(10):  # the answer of the send comes meanwhile
                        mq.run(asyncio.sleep(0.001), 5.0)
                    return None
            return trace

        while line == handled:  # each send is interrupted at the next line
            line = 0
            sys.settrace(trace)
            try:
                getattr(producer, send)(Message("t", b"x"))
            finally:
                sys.settrace(None)
        assert handled > 20


@pytest.mark.filterwarnings(
    "ignore:coroutine 'Producer._send_one' was never awaited"
)  # the send was interrupted before
def test_flush_does_not_wait_for_interrupted_asend(mq: Connection, admin: Admin) -> None:
    """Such a send counted as pending for ever: a close waited for it until its timeout."""
    del admin
    with Producer(mq, "p") as producer:
        step, files = 0, ("client/connection.py", "actors/event_loop.py")
        while interrupt_at(step, files, lambda: TASKS["asend"](producer), "arun", "submit"):
            assert producer.flush(), f"interrupted behind {step} lines"
            step += 1
        assert step > 5
