"""Test that closing a simple consumer during a receive returns all messages to the group."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.client import (
    Admin,
    ClientClosed,
    Connection,
    Message,
    MessageQueue,
    Producer,
    ReceivedMessage,
    SimpleConsumer,
)
from raymq.client.pop.pop_buffer import ReceiveCall
from tests.broker_process import BrokerProcess
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration

#: Longer than any test: a message hidden for so long is lost to the test.
HIDDEN_SECONDS = 600.0
COUNT = 5


class LateAnswers:
    """Holds back the answers to a connection's pops until `go_on` is called."""

    def __init__(self, mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
        self._mq, self._request = mq, mq.pool.request
        self.held = 0
        self._go_on = asyncio.Event()
        monkeypatch.setattr(mq.pool, "request", self._late)

    async def _late(self, address: str, command: Command, *rest: Any, **options: Any) -> Command:
        try:
            return await self._request(address, command, *rest, **options)
        finally:
            if command.code == RequestCode.POP_MESSAGE:
                self.held += 1
                await self._go_on.wait()

    def go_on(self) -> None:
        with contextlib.suppress(RuntimeError):  # the connection is closed already
            self._mq.loop.call_soon_threadsafe(self._go_on.set)


@pytest.fixture
def late_answers(mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> Iterator[LateAnswers]:
    made = LateAnswers(mq, monkeypatch)
    yield made
    made.go_on()


def receive_all(name_server: str) -> list[ReceivedMessage]:
    """Receive and acknowledge the sent messages with another member of the group."""
    found: list[ReceivedMessage] = []
    with Connection([name_server]) as mq, SimpleConsumer(mq, "g", {"t": "*"}) as other:
        while len(found) < COUNT and (received := other.receive(32, HIDDEN_SECONDS, 5.0)):
            assert other.ack(received)
            found += received
    return found


def assert_all_received(name_server: str) -> None:
    found = receive_all(name_server)
    assert sorted(message.body for message in found) == [b"%d" % number for number in range(COUNT)]
    assert {message.reconsume_times for message in found} == {0}, "nobody has failed on them"


def send_messages(mq: Connection, queue: MessageQueue | None = None) -> None:
    Producer(mq, "p").send_batch([Message("t", b"%d" % number) for number in range(COUNT)], queue=queue)


def start_late_receive(
    mq: Connection, late_answers: LateAnswers, threads: ThreadPoolExecutor
) -> tuple[SimpleConsumer, Future[list[ReceivedMessage]]]:
    """Start a receive on another thread whose answer the broker has sent and `late_answers` holds back."""
    consumer = SimpleConsumer(mq, "g", {"t": "*"})
    send_messages(mq)
    receiving = threads.submit(consumer.receive, COUNT, HIDDEN_SECONDS, 30.0)
    poll_until(lambda: late_answers.held)
    return consumer, receiving


def test_messages_popped_during_close_are_returned(
    services: Services, mq: Connection, late_answers: LateAnswers
) -> None:
    with ThreadPoolExecutor(2) as threads:
        consumer, receiving = start_late_receive(mq, late_answers, threads)
        closing = threads.submit(consumer.close)
        with pytest.raises(ClientClosed):  # at once, although the close still waits
            receiving.result(5)
        assert not closing.done(), "it waits for what the broker has given"
        late_answers.go_on()
        closing.result(10)
    assert_all_received(services.name_server.address)


def test_receive_cancelled_during_close_returns_messages(
    services: Services, mq: Connection, late_answers: LateAnswers
) -> None:
    async def cancel_while_closing() -> None:
        consumer = SimpleConsumer(mq, "g", {"t": "*"})
        receiving = asyncio.ensure_future(consumer.areceive(COUNT, HIDDEN_SECONDS, 30.0))
        await asyncio.to_thread(poll_until, lambda: late_answers.held)
        closing = asyncio.ensure_future(consumer.aclose())
        await asyncio.to_thread(poll_until, lambda: consumer._pop_engine._stopped.is_set())
        receiving.cancel()
        late_answers.go_on()
        await closing
        with pytest.raises((asyncio.CancelledError, ClientClosed)):
            await receiving

    send_messages(mq)
    asyncio.run(cancel_while_closing())
    assert_all_received(services.name_server.address)


def all_handed_over(consumer: SimpleConsumer) -> bool:
    return sum(map(len, consumer._pop_engine._handed.values())) == COUNT


def test_receiver_giving_up_during_close_returns_messages(services: Services, mq: Connection, admin: Admin) -> None:
    """Cover the moment between the end of a receive on the loop and the thread that takes its messages."""
    consumer = SimpleConsumer(mq, "g", {"t": "*"})
    send_messages(mq)
    receivers: list[ReceiveCall] = []

    while not all_handed_over(consumer):
        receivers.append(ReceiveCall())
        mq.run(consumer._receive(COUNT, HIDDEN_SECONDS, 5.0, receivers[-1]))
    with ThreadPoolExecutor(1) as threads:
        closing = threads.submit(consumer.close)
        poll_until(lambda: consumer._pop_engine._stopped.is_set())
        for receiver in receivers:
            consumer._given_up(receiver)
        closing.result(10)
    assert_all_received(services.name_server.address)


def test_close_returns_messages_of_silent_receiver(services: Services, mq: Connection, admin: Admin) -> None:
    consumer = SimpleConsumer(mq, "g", {"t": "*"})
    send_messages(mq)
    while not all_handed_over(consumer):
        mq.run(consumer._receive(COUNT, HIDDEN_SECONDS, 5.0, ReceiveCall()))
    consumer.close()
    assert not consumer._pop_engine._handed
    assert_all_received(services.name_server.address)


def test_receive_cancelled_before_first_step_takes_no_message(
    services: Services, mq: Connection, late_answers: LateAnswers
) -> None:
    """The cancellation reaches the connection's loop before the first step of the receive."""

    async def give_up_two() -> None:
        first = asyncio.ensure_future(consumer.areceive(COUNT, HIDDEN_SECONDS, 30.0))
        await asyncio.to_thread(poll_until, lambda: late_answers.held)
        first.cancel()
        late_answers.go_on()
        await asyncio.to_thread(poll_until, kept)
        held, go_on = threading.Event(), threading.Event()
        mq.loop.call_soon_threadsafe(lambda: (held.set(), go_on.wait(30)))
        await asyncio.to_thread(held.wait, 30)
        second = asyncio.ensure_future(consumer.areceive(COUNT, HIDDEN_SECONDS, 30.0))
        await asyncio.sleep(0)  # it hands its coroutine to the loop
        second.cancel()
        await asyncio.wait((first, second))
        go_on.set()
        await mq.arun(asyncio.sleep(0))
        assert first.cancelled()
        assert second.cancelled()

    def kept() -> int:
        return consumer._pop_engine._kept.count(1)

    admin = Admin(mq)
    admin.create_topic("one", queues=1)
    consumer = SimpleConsumer(mq, "g1", {"one": "*"})
    Producer(mq, "p").send_batch(
        [Message("one", b"%d" % number) for number in range(COUNT)], queue=next(iter(admin.topic_stats("one")))
    )
    asyncio.run(give_up_two())
    assert not consumer._pop_engine._handed
    assert kept() == COUNT
    assert len(consumer.receive(COUNT, HIDDEN_SECONDS, 5.0)) == COUNT, "the next one gets all of it"


def test_second_close_waits_for_first_close(services: Services, mq: Connection, late_answers: LateAnswers) -> None:
    with ThreadPoolExecutor(3) as threads:
        consumer, receiving = start_late_receive(mq, late_answers, threads)
        first = threads.submit(consumer.close)
        poll_until(lambda: consumer._pop_engine._stopped.is_set())
        second = threads.submit(mq.close)
        with pytest.raises(ClientClosed):
            receiving.result(5)
        assert not first.done()
        assert not second.done()
        late_answers.go_on()
        first.result(10)
        second.result(10)
    assert_all_received(services.name_server.address)


AT_EXIT = """
    import sys, threading
    from raymq.actors.wire.codes import RequestCode
    from raymq.client import Connection, SimpleConsumer

    mq = Connection([sys.argv[1]])
    consumer = SimpleConsumer(mq, "g", {"t": "*"})
    real, popped = mq.pool.request, threading.Event()

    async def slow(address, command, *rest, **options):
        import asyncio
        answer = await real(address, command, *rest, **options)
        if command.code == RequestCode.POP_MESSAGE:
            popped.set()
            await asyncio.sleep(0.5)  # it is on its way when the program ends
        return answer

    mq.pool.request = slow
    threading.Thread(target=lambda: consumer.receive(5, 600.0, 30.0), daemon=True).start()
    popped.wait(30)
"""


def test_program_exit_during_receive_returns_messages(services: Services, mq: Connection, admin: Admin) -> None:
    send_messages(mq)
    script = textwrap.dedent(AT_EXIT)
    done = subprocess.run(
        [sys.executable, "-c", script, services.name_server.address], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert_all_received(services.name_server.address)


def test_answer_after_request_timeout_delivers_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker hangs for longer than the request timeout, and then answers."""
    monkeypatch.setattr("raymq.client.pop.pop_requests._REQUEST_SECONDS", 0.5)
    first = BrokerProcess("broker-a", tmp_path)
    brokers = [first, BrokerProcess("broker-b", tmp_path, first.name_server)]
    try:
        with Connection([first.name_server]) as mq:
            admin = Admin(mq)
            poll_until(lambda: len(admin.cluster_info().brokers) == 2)
            admin.create_topic("t", queues=1)
            with SimpleConsumer(mq, "g", {"t": "*"}) as consumer, ThreadPoolExecutor(1) as threads:
                send_messages(mq, MessageQueue("t", "broker-b", 0))
                brokers[1].signal(signal.SIGSTOP)
                receiving = threads.submit(consumer.receive, COUNT, HIDDEN_SECONDS, 30.0)
                poll_until(lambda: ("broker-b", "t") in consumer._pop_engine._asked_at)
                threading.Event().wait(1.5)  # a hang of that length, not a synchronisation
                brokers[1].signal(signal.SIGCONT)
                found = receiving.result(30)
                while len(found) < COUNT and (received := consumer.receive(COUNT, HIDDEN_SECONDS, 5.0)):
                    found += received
                assert sorted(message.body for message in found) == [b"%d" % number for number in range(COUNT)]
    finally:
        for broker in reversed(brokers):
            broker.signal(signal.SIGCONT)
            broker.stop()
