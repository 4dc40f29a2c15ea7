"""Test that supervised tasks of a consumer survive unexpected errors, report them and lose no message."""

from __future__ import annotations

import ast
import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raymq.actors import supervisor
from raymq.actors.sending import broker_prober
from raymq.actors.sending.broker_prober import BrokerProber
from raymq.client import (
    Admin,
    Connection,
    ConsumeResult,
    Message,
    Producer,
    PushConsumer,
    RayMQError,
    ReceivedMessage,
    SimpleConsumer,
    WorkFailed,
)
from raymq.client.members import membership
from raymq.client.members.lock_table import LockTable
from raymq.client.members.membership import Membership
from raymq.client.pop import pop_requests
from raymq.client.pop.pop_consumer_engine import PopConsumerEngine
from raymq.client.push import push_consumer_engine as consuming
from raymq.client.push import queue_fetcher
from raymq.client.push.call_results import SendBackClient
from raymq.client.push.consume_message_service import ConsumeMessageService
from raymq.client.push.delivery_order import ConcurrentDelivery
from raymq.client.push.listener_runs import ListenerLatency
from raymq.client.push.message_leases import MessageLeases
from raymq.client.push.push_consumer_engine import PushConsumerEngine
from raymq.client.push.push_pop_engine import PushPopEngine
from raymq.client.push.queue_fetcher import OffsetRecovery, QueueFetcher
from raymq.client.requests.offset_requests import OffsetRequests
from tests.integration.conftest import Services
from tests.integration.recording_listener import RecordingListener
from tests.polling import poll_until

pytestmark = pytest.mark.integration

#: By the name of a task or report: whether the consumer is ordered, and the function that fails.
WORKS: dict[str, tuple[bool, Any, str]] = {
    "heartbeat": (False, Membership, "heartbeat"),
    "assignment": (False, PushConsumerEngine, "_share_out"),
    "commits": (False, PushConsumerEngine, "_begin_commits"),
    "commit": (False, OffsetRequests, "commit"),
    "expiry of calls": (False, ConsumeMessageService, "expire_calls"),
    "fetches from ": (False, queue_fetcher, "fetch"),
    "fetch of a queue": (False, QueueFetcher, "deliver"),
    "examination of a queue": (False, OffsetRecovery, "_read_singly"),
    "send-back": (False, SendBackClient, "__call__"),
    "listener call": (False, ListenerLatency, "took"),
    "outcome of a call": (False, ConcurrentDelivery, "done"),
    "locks": (True, LockTable, "due"),
    "renewal of locks": (True, LockTable, "granted"),
    "handing over of a queue": (True, ConsumeMessageService, "idle"),
    "trace hook": (False, None, "trace"),
}
#: The same for a consumer in pop mode.
LENT_WORKS: dict[str, tuple[Any, str]] = {
    "pops": (PushPopEngine, "_begins_at_once"),
    "leases": (MessageLeases, "due"),
    "settling of messages": (MessageLeases, "renewed"),
}
#: Tasks that run as long as the consumer does.
ALWAYS = {"heartbeat", "assignment", "commits", "expiry of calls", "fetches from broker-a", "fetches from broker-b"}
TIMES = 3


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten intervals of a second to a tenth, so that each task runs often."""
    monkeypatch.setattr(consuming, "_TICK_SECONDS", 0.1)
    monkeypatch.setattr(consuming, "_COMMIT_SECONDS", 0.1)
    monkeypatch.setattr(consuming, "REBALANCE_SECONDS", 1.0)
    monkeypatch.setattr(membership, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(membership, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(supervisor, "FIRST_SECONDS", 0.02)
    monkeypatch.setattr(supervisor, "LONGEST_SECONDS", 0.2)


class Fault:
    """Raise an error in place of the next `left` calls of a function."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.left = 0
        self.met = 0

    def meet(self) -> None:
        if self.left:
            self.left -= 1
            self.met += 1
            raise self.error

    def before(self, real: Callable[..., Any]) -> Callable[..., Any]:
        if asyncio.iscoroutinefunction(real):

            async def faulty(*arguments: Any, **options: Any) -> Any:
                self.meet()
                return await real(*arguments, **options)

            return faulty

        def also_faulty(*arguments: Any, **options: Any) -> Any:
            self.meet()
            return real(*arguments, **options)

        return also_faulty


#: Tasks and callbacks of the loop in which a SystemExit would end asyncio's loop.
ENDS_LOOPS = [
    "heartbeat",
    "assignment",
    "commit",
    "fetches from ",
    "fetch of a queue",
    "send-back",
    "outcome of a call",
]


@pytest.mark.parametrize(
    ("work", "error"),
    [*((work, ValueError("unexpected")) for work in WORKS), *((work, SystemExit(1)) for work in ENDS_LOOPS)],
    ids=lambda value: value if isinstance(value, str) else repr(value),
)
def test_consumer_task_survives_unexpected_error(
    mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch, work: str, error: BaseException
) -> None:
    ordered, place, name = WORKS[work]
    fault = Fault(error)
    if place is not None:
        monkeypatch.setattr(place, name, fault.before(getattr(place, name)))
    fails_first: set[bytes] = set()

    def verdict(message: ReceivedMessage) -> ConsumeResult | None:
        if message.body.endswith(b"5") and message.body not in fails_first:
            fails_first.add(message.body)
            return ConsumeResult.RECONSUME_LATER
        return None

    taker = RecordingListener(verdict)
    producer = Producer(mq, "p")
    trace = (lambda _: fault.meet()) if place is None else None
    consumer = PushConsumer(
        mq, "g", {"t": "*"}, taker, ordered=ordered, ordered_retry_interval=0.01, trace=trace, batch_size=1
    )
    with consumer:
        assert consumer.health.ok
        producer.send(Message("t", b"first"))
        poll_until(lambda: taker.taken)
        fault.left = TIMES
        if work in ("locks", "renewal of locks"):
            mq.loop.call_soon_threadsafe(consumer._consuming._locks._wanted.set)  # type: ignore[union-attr]
        if work == "assignment":
            mq.loop.call_soon_threadsafe(consumer._consuming._rebalance_now.set)  # type: ignore[union-attr]
        if work == "handing over of a queue":
            with PushConsumer(mq, "g", {"t": "*"}, taker, ordered=ordered, ordered_retry_interval=0.01):
                poll_until(lambda: fault.met, 30)
        if work == "examination of a queue":
            monkeypatch.setattr(QueueFetcher, "deliver", fail_first_delivery(QueueFetcher.deliver))
        bodies = {b"%d" % number for number in range(40)}
        for body in sorted(bodies):
            producer.send(Message("t", body))
        poll_until(lambda: fault.met == TIMES, 30, "the fault was met")
        poll_until(lambda: bodies <= set(taker.bodies), 30, "all messages")
        poll_until(lambda: lag(admin) == 0, 30, "lag 0")
        poll_until(lambda: set(consumer.health.works) >= ALWAYS, 10, "everything lives")
        reported = {failure.work: failure for failure in consumer.health.failures}
        assert any(each.startswith(work) for each in reported), reported
        assert consumer.health.ok
        assert not consumer.wait(0.0)
    assert not consumer.health.running
    assert consumer.wait(0.0)


@pytest.mark.parametrize("work", LENT_WORKS)
def test_pop_consumer_task_survives_unexpected_error(
    mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    fault = Fault(ValueError("unexpected"))
    place, name = LENT_WORKS[work]
    monkeypatch.setattr(place, name, fault.before(getattr(place, name)))
    taker = RecordingListener()
    with PushConsumer(mq, "g", {"t": "*"}, taker, mode="pop", lease=1.0, threads=1, prefetch=5) as consumer:
        with Producer(mq, "p") as producer:
            producer.send(Message("t", b"first"))
            poll_until(lambda: taker.taken)
            fault.left = TIMES
            for number in range(20):
                producer.send(Message("t", b"%d" % number))
        poll_until(lambda: fault.met == TIMES, 30, "the fault was met")
        poll_until(lambda: len(set(taker.bodies)) == 21, 30, "all messages")
        poll_until(lambda: lag(admin) == 0, 30, "lag 0")
        assert work in {failure.work for failure in consumer.health.failures}
        poll_until(lambda: consumer.health.ok, 10)


@pytest.mark.parametrize("ordered", [False, True])
def test_queue_with_failed_start_is_retried_soon(
    mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    """Take over other queues meanwhile, and retry these before the next rebalance."""
    monkeypatch.setattr(consuming, "REBALANCE_SECONDS", 1_000.0)
    fault = Fault(ValueError("unexpected"))
    monkeypatch.setattr(OffsetRequests, "committed", fault.before(OffsetRequests.committed))
    taker = RecordingListener()
    with PushConsumer(mq, "g", {"t": "*"}, taker, ordered=ordered) as consumer:
        running = consumer._consuming
        assert running is not None
        all_queues = set(running._queues)
        with PushConsumer(mq, "g", {"t": "*"}, taker, ordered=ordered):
            poll_until(lambda: len(running._queues) < len(all_queues), 20)
            fault.left = TIMES
        poll_until(lambda: set(running._queues) == all_queues, 20)
        assert fault.met == TIMES
        assert "assignment" in {failure.work for failure in consumer.health.failures}
        poll_until(lambda: consumer.health.ok, 20)


def fail_first_delivery(real: Callable[..., None]) -> Callable[..., None]:
    left = [1]

    def deliver(*arguments: Any) -> None:
        if left:
            left.pop()
            raise ValueError("cannot be taken")
        real(*arguments)

    return deliver


def lag(admin: Admin) -> int:
    try:
        return sum(progress.lag or 0 for progress in admin.group_progress("g").values())
    except RayMQError:
        return -1


def test_all_supervised_tasks_are_covered_here(repository: Path) -> None:
    found = set()
    for path in sorted((repository / "client" / "push").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute | ast.Name)
                and (node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id)
                in ("keep", "_keep_returning", "every", "once", "report")
                and node.args
            ):
                first = node.args[0]
                if isinstance(first, ast.JoinedStr):
                    first = first.values[0]
                if isinstance(first, ast.Constant):
                    found.add(first.value)
    # The log of failures is covered by integration/test_listener_failures.py.
    assert found == WORKS.keys() | LENT_WORKS.keys() | {"log of failures"}


def test_wait_raises_when_task_fails_repeatedly(mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Fault(ValueError("always"))
    monkeypatch.setattr(ConsumeMessageService, "expire_calls", fault.before(ConsumeMessageService.expire_calls))
    release = threading.Event()

    def listener(_: list[ReceivedMessage]) -> ConsumeResult:
        release.wait(30)
        return ConsumeResult.SUCCESS

    with PushConsumer(mq, "g", {"t": "*"}, listener) as consumer:
        fault.left = 1_000
        Producer(mq, "p").send(Message("t", b"in hand"))
        with pytest.raises(WorkFailed) as caught:
            consumer.wait(30)
        assert (caught.value.work, caught.value.reason) == ("expiry of calls", repr(fault.error))
        assert not consumer.health.ok
        with pytest.raises(WorkFailed):
            consumer.start()
        fault.left = 0
        poll_until(lambda: consumer.health.ok, 30)
        release.set()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_shutdown_inside_listener_returns_and_call_counts(mq: Connection, admin: Admin, asynchronous: bool) -> None:
    got: list[bytes] = []
    ended = threading.Event()

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        got.extend(message.body for message in messages)
        consumer.shutdown(20.0)
        ended.set()
        return ConsumeResult.SUCCESS

    async def awaited(messages: list[ReceivedMessage]) -> ConsumeResult:
        return listener(messages)

    consumer = PushConsumer(mq, "g", {"t": "*"}, awaited if asynchronous else listener)
    consumer.start()
    sent = Producer(mq, "p").send(Message("t", b"1"))
    assert ended.wait(10)
    assert consumer.wait(10)
    assert got == [b"1"]
    assert admin.group_progress("g")[sent.queue].committed_offset == sent.queue_offset + 1


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), asyncio.CancelledError()], ids=repr)
def test_async_listener_error_does_not_block_other_calls(mq: Connection, admin: Admin, error: BaseException) -> None:
    failed: set[bytes] = set()
    done: list[bytes] = []

    async def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        await asyncio.sleep(0.001)
        (message,) = messages
        if message.body not in failed:
            failed.add(message.body)
            raise error
        done.append(message.body)
        return ConsumeResult.SUCCESS

    bodies = sorted(b"%d" % number for number in range(30))
    with PushConsumer(mq, "g", {"t": "*"}, listener):
        Producer(mq, "p").send_batch([Message("t", body) for body in bodies])
        poll_until(lambda: sorted(done) == bodies, 30)


def test_simple_consumer_membership_survives_errors(
    mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault(ValueError("unexpected"))
    monkeypatch.setattr(Membership, "heartbeat", fault.before(Membership.heartbeat))
    with SimpleConsumer(mq, "g", {"t": "*"}) as consumer:
        fault.left = TIMES
        poll_until(lambda: fault.met == TIMES, 30)
        poll_until(lambda: "heartbeat" in consumer._pop_engine.supervisor.works, 10)


@pytest.mark.parametrize("error", [ValueError("unexpected"), SystemExit(1)], ids=repr)
@pytest.mark.parametrize(
    ("work", "place", "name"),
    [
        ("notification", pop_requests, "Notification"),
        ("pop", pop_requests, "read_handles"),
        ("return of messages", PopConsumerEngine, "_give_back"),
    ],
)
def test_simple_consumer_task_survives_unexpected_error(
    mq: Connection,
    admin: Admin,
    monkeypatch: pytest.MonkeyPatch,
    work: str,
    place: Any,
    name: str,
    error: BaseException,
) -> None:
    """Cover fault 14.2: after an unexpected error notifications were requested without a pause."""
    fault = Fault(error)
    monkeypatch.setattr(place, name, fault.before(getattr(place, name)))
    monkeypatch.setattr(pop_requests, "_PARK_SECONDS", 0.5)
    bodies = {b"%d" % number for number in range(10)}
    with SimpleConsumer(mq, "g", {"t": "*"}) as consumer, Producer(mq, "p") as producer:
        fault.left = TIMES
        got: set[bytes] = set()

        def receive() -> bool:
            try:
                messages = consumer.receive(4, invisible_duration=0.4, await_duration=0.5)
            except WorkFailed:  # a failed pop is also raised to the caller
                return False
            if work == "return of messages" and fault.left:
                mq.run(give_back(consumer, messages))
                return False
            if messages and consumer.ack(messages):
                got.update(message.body for message in messages)
            return got >= bodies and not fault.left

        consumer.receive(1, await_duration=0.0)
        for body in bodies:
            producer.send(Message("t", body))
        poll_until(receive, 60, "all messages, and the fault was met")
        [reported] = [failure for failure in consumer.health.failures if failure.work == work]
        assert (reported.count, reported.error) == (TIMES, repr(error))
        assert consumer.health.ok


async def give_back(consumer: SimpleConsumer, messages: list[ReceivedMessage]) -> None:
    """Return messages, as a receive does that kept them for too long."""
    consumer._pop_engine._spawn(consumer._pop_engine._give_back(messages))


@pytest.mark.parametrize("error", [ValueError("unexpected"), SystemExit(1)], ids=repr)
def test_broker_probing_survives_unexpected_error(
    mq: Connection, admin: Admin, services: Services, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Cover fault 14.2: one unexpected error left a broker isolated for its full time."""
    fault = Fault(error)
    monkeypatch.setattr(broker_prober, "PROBE_EVERY_SECONDS", 0.05)
    probe, met = fault.before(BrokerProber._probe), []

    async def seen(prober: BrokerProber, broker: str) -> None:
        met.append(prober)
        await probe(prober, broker)

    monkeypatch.setattr(BrokerProber, "_probe", seen)
    with Producer(mq, "p", retries=5) as producer:
        producer.send(Message("t", b"first"))
        services.crash_broker("broker-a")
        fault.left = TIMES

        def probed() -> bool:
            producer.send(Message("t", b"x"), timeout=30.0)
            return bool(met)

        poll_until(probed, 30)
        prober = met[0]
        poll_until(lambda: not fault.left, 30, "the fault was met")
        [reported] = prober.supervisor.failures
        assert (reported.work, reported.count) == ("probe of a broker", TIMES)
        services.start_broker("broker-a")
        poll_until(lambda: not prober.isolation.suspects(), 60, "the broker is found to be back")
