"""Test that a hanging broker, as a stopped process, does not block clients of another broker."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq.client import (
    Admin,
    Connection,
    ConsumeResult,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
)
from raymq.client.errors import Timeout
from raymq.client.push import push_consumer_engine as consuming
from tests.broker_process import BrokerProcess
from tests.polling import poll_until

pytestmark = pytest.mark.integration


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    first = BrokerProcess("broker-a", tmp_path)
    made = [first, BrokerProcess("broker-b", tmp_path, first.name_server)]
    yield made
    for each in reversed(made):
        each.signal(signal.SIGCONT)
        each.stop()


@pytest.fixture
def cluster(brokers: list[BrokerProcess]) -> Iterator[Connection]:
    with Connection([brokers[0].name_server]) as mq:
        admin = Admin(mq)
        poll_until(lambda: len(admin.cluster_info().brokers) == 2)
        admin.create_topic("t", queues=2)
        yield mq


def test_receive_with_paused_broker_returns_other_messages(cluster: Connection, brokers: list[BrokerProcess]) -> None:
    producer = Producer(cluster, "p")
    with SimpleConsumer(cluster, "g", {"t": "*"}) as consumer:
        for broker in ("broker-a", "broker-b"):
            for number in range(5):
                producer.send(Message("t", b"%d" % number), queue=MessageQueue("t", broker, 0))
        brokers[1].signal(signal.SIGSTOP)
        try:
            got = []
            while len(got) < 5:
                began = time.monotonic()
                messages = consumer.receive(max_messages=32, invisible_duration=4.0, await_duration=1.0)
                elapsed = time.monotonic() - began
                assert elapsed < 4.0, "within the messages' time"
                assert consumer.ack(messages), "none had expired in its hands"
                got += messages
            assert {message.queue.broker for message in got} == {"broker-a"}
        finally:
            brokers[1].signal(signal.SIGCONT)
        later = []
        deadline = time.monotonic() + 30
        while len(later) < 5 and time.monotonic() < deadline:
            messages = consumer.receive(invisible_duration=4.0, await_duration=2.0)
            assert not messages or consumer.ack(messages)
            later += messages
        assert sorted(message.body for message in later) == [b"%d" % number for number in range(5)]


def test_cancelled_receive_leaves_messages_to_next_one(cluster: Connection) -> None:
    count = 300
    Producer(cluster, "p").send_batch([Message("t", b"%d" % number) for number in range(count)])

    async def take() -> list[bytes]:
        bodies: list[bytes] = []
        deadline = time.monotonic() + 60
        turn = 0
        while len(bodies) < count and time.monotonic() < deadline:
            turn += 1
            receiving = asyncio.ensure_future(consumer.areceive(10, invisible_duration=120.0, await_duration=5.0))
            if turn % 3:  # at a different moment each time
                await asyncio.sleep(0.0003 * (turn % 20))
                receiving.cancel()
            try:
                messages = await receiving
            except asyncio.CancelledError:
                continue
            assert await consumer.aack(messages)
            bodies += [message.body for message in messages]
        return bodies

    with SimpleConsumer(cluster, "g", {"t": "*"}) as consumer:
        assert sorted(asyncio.run(take())) == sorted(b"%d" % number for number in range(count))


def test_close_with_paused_broker_respects_timeout(cluster: Connection, brokers: list[BrokerProcess]) -> None:
    """Wait for no request to the hanging broker, each of which takes five seconds."""
    producer = Producer(cluster, "p")
    taken: list[bytes] = []

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        taken.extend(message.body for message in messages)
        return ConsumeResult.SUCCESS

    consumer = PushConsumer(cluster, "g", {"t": "*"}, listener)
    consumer.start()
    simple = SimpleConsumer(cluster, "s", {"t": "*"})
    sent = [producer.send(Message("t", b"x"), queue=MessageQueue("t", "broker-b", 0))]
    poll_until(lambda: taken)
    brokers[1].signal(signal.SIGSTOP)
    try:
        sent.append(producer.send(Message("t", b"y"), queue=MessageQueue("t", "broker-a", 0)))
        poll_until(lambda: len(taken) == 2)
        began = time.monotonic()
        consumer.shutdown(1.0)
        simple.close(1.0)
        assert time.monotonic() - began < 4.5
    finally:
        brokers[1].signal(signal.SIGCONT)
    progress = Admin(cluster).group_progress("g")
    assert progress[sent[1].queue].committed_offset == 1, "the broker that lives was told"


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["average", "sticky"])
def test_new_member_consumes_while_one_broker_hangs(
    cluster: Connection, brokers: list[BrokerProcess], strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give each queue one owner, those of the hanging broker once it answers."""
    monkeypatch.setattr(consuming, "REBALANCE_SECONDS", 2.0)  # instead of 20 s
    producer, got = Producer(cluster, "p"), {"first": list[ReceivedMessage](), "second": list[ReceivedMessage]()}

    def taking(name: str, mq: Connection) -> PushConsumer:
        def listen(messages: list[ReceivedMessage]) -> ConsumeResult:
            got[name].extend(messages)
            return ConsumeResult.SUCCESS

        return PushConsumer(mq, "g", {"t": "*"}, listen, strategy=strategy)

    def send_to(broker: str, round_: int) -> None:
        for queue_id in range(2):
            producer.send(Message("t", b"%d" % round_), queue=MessageQueue("t", broker, queue_id))

    def bodies(body: bytes) -> list[MessageQueue]:
        return sorted(each.queue for messages in got.values() for each in messages if each.body == body)

    def queues_of(broker: str) -> list[MessageQueue]:
        return [MessageQueue("t", broker, queue_id) for queue_id in range(2)]

    with taking("first", cluster), Connection([brokers[0].name_server]) as joining:
        brokers[1].signal(signal.SIGSTOP)
        second = taking("second", joining)
        try:
            second.start()
            with SimpleConsumer(joining, "simple", {"t": "*"}) as simple:
                send_to("broker-a", 1)
                poll_until(lambda: set(bodies(b"1")) == set(queues_of("broker-a")), timeout=30)
                messages = simple.receive(max_messages=32, invisible_duration=30.0, await_duration=10.0)
                assert {message.queue.broker for message in messages} == {"broker-a"}
        finally:
            brokers[1].signal(signal.SIGCONT)
        try:
            poll_until(lambda: len(Admin(cluster).cluster_info().brokers) == 2)
            rounds = iter(range(2, 1000))

            def both_take_their_half() -> bool:
                round_ = next(rounds)
                for broker in ("broker-a", "broker-b"):
                    send_to(broker, round_)
                everything = queues_of("broker-a") + queues_of("broker-b")
                poll_until(lambda: set(bodies(b"%d" % round_)) == set(everything), timeout=30)
                owners = [{each.queue for each in messages if each.body == b"%d" % round_} for messages in got.values()]
                return [len(queues) for queues in owners] == [2, 2] and bodies(b"%d" % round_) == everything

            poll_until(both_take_their_half, timeout=60)
        finally:
            second.shutdown()


@pytest.mark.parametrize("position_known", [True, False])
@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.long
def test_poll_of_hung_broker_ends_soon_after_timeout(
    brokers: list[BrokerProcess], cluster: Connection, position_known: bool, asynchronous: bool
) -> None:
    """Cover fault 8: poll(timeout=1) took 11 s.

    The bound is checked by the error message, not by a clock.
    """
    queue = MessageQueue("t", "broker-b", 0)
    with PullConsumer(cluster, "g") as pull:
        if position_known:
            pull.seek(queue, 0)
            pull.poll(queue, timeout=0.1)
        brokers[1].signal(signal.SIGSTOP)
        try:
            with pytest.raises(Timeout, match=r"broker-b.*no answer within [23](\.\d+)? s"):
                asyncio.run(pull.apoll(queue, timeout=1.0)) if asynchronous else pull.poll(queue, timeout=1.0)
        finally:
            brokers[1].signal(signal.SIGCONT)
        assert pull.poll(queue, timeout=5.0) == []
