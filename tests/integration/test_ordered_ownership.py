"""Test that one ordered member owns a queue at a time, even when its sockets are cut."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from raymq.actors.errors import OffsetReset
from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.actors.protocol import TopicRoute
from raymq.actors.wire.commands.fetch_commands import Fetched, fetch_command, read_fetched
from raymq.actors.wire.commands.lock_commands import lock_command, unlock_command
from raymq.actors.wire.commands.offset_commands import update_offset_command
from raymq.actors.wire.frame import Command
from raymq.client import (
    Admin,
    Connection,
    ConsumeResult,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
)
from raymq.client.push.rebalance import Stage
from tests.integration.cable import Cable
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration

QUEUES = [MessageQueue("t", broker, number) for broker in ("broker-a", "broker-b") for number in range(2)]


@dataclass(frozen=True)
class Call:
    member: str
    queue: MessageQueue
    offset: int
    begun: float
    ended: float


@dataclass
class Calls:
    """Record every call of every member with the machine's monotonic clock."""

    all: list[Call] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def member(self, mq: Connection, name: str) -> PushConsumer:
        """Return a member of group "g" whose calls are recorded under `name`."""
        return PushConsumer(mq, "g", {"t": "*"}, self._listener(name), ordered=True)

    def _listener(self, member: str) -> Callable[[list[ReceivedMessage]], ConsumeResult]:
        def listen(messages: list[ReceivedMessage]) -> ConsumeResult:
            begun = time.monotonic()
            time.sleep(0.005)
            with self._lock:
                (message,) = messages
                self.all.append(Call(member, message.queue, message.queue_offset, begun, time.monotonic()))
            return ConsumeResult.SUCCESS

        return listen

    def since(self, seconds: float, member: str) -> list[Call]:
        return [call for call in list(self.all) if call.member == member and call.begun >= seconds]

    def taken(self, member: str, since: float) -> set[MessageQueue]:
        """Return the queues that a member was called with since then."""
        return {call.queue for call in self.since(since, member)}

    def by_queue(self) -> dict[MessageQueue, list[Call]]:
        found: dict[MessageQueue, list[Call]] = {}
        for call in sorted(self.all, key=lambda call: call.begun):
            found.setdefault(call.queue, []).append(call)
        return found


class CutConnection:
    """Connect to the brokers through cables that can be cut."""

    def __init__(self, services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
        self._loop = services.loop
        self._cables: dict[str, Cable] = {}
        for name, broker in services.brokers.items():
            host, _, port = broker.address.rpartition(":")
            self._cables[name] = Cable((host, int(port)))
            self._loop.run(self._cables[name].start())
        self.mq = Connection([services.name_server.address])
        get = self.mq.routes.get

        async def through_the_cables(topic: str, **options: object) -> TopicRoute:
            route = await get(topic, **options)  # type: ignore[arg-type]
            return TopicRoute(route.topic, route.queues, {name: self._cables[name].address for name in route.addresses})

        monkeypatch.setattr(self.mq.routes, "get", through_the_cables)

    def cut(self, *, tell_client: bool = True, tell_brokers: bool = True) -> None:
        for cable in self._cables.values():
            self._loop.run(cable.cut(tell_near=tell_client, tell_far=tell_brokers))

    def mend(self) -> None:
        for cable in self._cables.values():
            self._loop.run(cable.mend())

    def close(self) -> None:
        self.mq.close()
        for cable in self._cables.values():
            self._loop.run(cable.stop())


@pytest.fixture
def cut(services: Services, monkeypatch: pytest.MonkeyPatch) -> Iterator[CutConnection]:
    made = CutConnection(services, monkeypatch)
    yield made
    made.close()


@contextmanager
def traffic(mq: Connection, queues: list[MessageQueue]) -> Iterator[dict[MessageQueue, int]]:
    """Send messages to all queues continuously; yield the count per queue."""
    sent = dict.fromkeys(queues, 0)
    over = threading.Event()

    def send() -> None:
        with Producer(mq, "p", timeout=20.0) as producer:
            while not over.wait(0.02):
                for queue in queues:
                    producer.send(Message("t", b"x"), queue=queue)
                    sent[queue] += 1

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield sent
    finally:
        over.set()
        thread.join()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "tell_client", [pytest.param(True, marks=pytest.mark.long), False], ids=["both see it", "only the brokers see it"]
)
def test_disconnected_owner_stops_before_locks_are_reassigned(
    services: Services, mq: Connection, admin: Admin, cut: CutConnection, tell_client: bool
) -> None:
    """Cover fault 13.19."""
    del services, admin
    calls = Calls()
    taken, first, second = calls.taken, calls.member(cut.mq, "first"), calls.member(mq, "second")
    with traffic(mq, QUEUES) as sent, first, second:
        began = time.monotonic()
        poll_until(lambda: len(taken("first", began)) >= 2 and len(taken("second", began)) >= 2, 20)
        shared = time.monotonic()
        poll_until(lambda: taken("first", shared) and taken("second", shared), 10)
        cut.cut(tell_client=tell_client)
        cut_at = time.monotonic()
        poll_until(lambda: taken("second", time.monotonic() - 0.5) == set(QUEUES), 30, "the other member takes all")
        taken_at = time.monotonic()
        poll_until(lambda: len(calls.since(taken_at, "second")) > 50, 20)
        cut.mend()
        mended_at = time.monotonic()
        poll_until(lambda: len(taken("first", mended_at)) == 2, 40, "it is given its share again")
        goal = dict(sent)
        poll_until(lambda: all(any(c.offset >= goal[q] - 1 for c in each) for q, each in calls.by_queue().items()), 30)

    assert not [call for call in calls.since(taken_at, "first") if call.begun < mended_at], "it called while it was cut"
    for queue, each in calls.by_queue().items():
        ordered = sorted(each, key=lambda call: call.begun)
        for earlier, later in pairwise(ordered):
            assert earlier.ended <= later.begun, f"two calls of {queue} at a time: {earlier}, {later}"
        offsets = [call.offset for call in ordered]
        assert set(offsets) >= set(range(goal[queue])), "something is missing"
        # Only messages that the owner consumed last, and could not commit, are redelivered.
        again = [call for n, call in enumerate(ordered) if call.offset in offsets[:n]]
        done_last = {call.offset for call in ordered if call.member == "first" and call.begun > cut_at - 2.0}
        assert {call.offset for call in again} <= done_last
        assert not [call for call in again if call.begun > mended_at]


@pytest.mark.timeout(120)
def test_owner_resumes_after_cut_unseen_by_brokers(
    services: Services, mq: Connection, admin: Admin, cut: CutConnection
) -> None:
    """Keep the owner: no other member takes its queues, and no message is repeated."""
    del services, admin
    calls = Calls()
    taken, first, second = calls.taken, calls.member(cut.mq, "first"), calls.member(mq, "second")
    with first, second:
        poll_until(lambda: all(queue_count(member) == 2 for member in (first, second)), 20)
        with traffic(mq, QUEUES) as sent:
            poll_until(lambda: len(calls.all) > 100, 20)
            mine = taken("first", 0.0)
            cut.cut(tell_brokers=False)
            cut_at = time.monotonic()
            poll_until(
                lambda: len(calls.since(cut_at + 3.0, "second")) > 50, 20, "longer than locks outlive their owner"
            )
            cut.mend()
            poll_until(lambda: taken("first", cut_at) == mine, 40, "it goes on")
        poll_until(lambda: len(calls.all) >= sum(sent.values()), 30)
    assert not taken("second", 0.0) & mine
    for queue, each in calls.by_queue().items():
        assert [call.offset for call in each] == list(range(sent[queue])), "in order, each once"


def queue_count(member: PushConsumer) -> int:
    """Return the number of queues of the topic that a member consumes."""
    assert member._consuming is not None
    return sum(queue.topic == "t" for queue in list(member._consuming._queues))


@pytest.mark.timeout(60)
def test_restarted_broker_delays_locks_until_old_ones_expire(services: Services, mq: Connection) -> None:
    """Restart a broker, which forgets its locks while their holders still rely on them."""
    Admin(mq).create_topic("t", queues=1)
    services.crash_broker("broker-a")
    services.start_broker("broker-a")
    locks = services.brokers["broker-a"].core.locks

    async def rest() -> float:
        return locks.blocked_seconds

    assert services.loop.run(rest()) > 0
    calls = Calls()
    with (
        calls.member(mq, "only"),
        Producer(mq, "p", timeout=20.0) as producer,
    ):
        assert services.loop.run(rest()) == 0, "it waited for its lock, and began with it"
        producer.send(Message("t", b"x"), queue=MessageQueue("t", "broker-a", 0))
        poll_until(lambda: calls.all, 20)


@pytest.mark.timeout(60)
def test_offset_reset_by_other_member_overrides_old_position(services: Services, mq: Connection, admin: Admin) -> None:
    """Move a queue away and back: the owner's former progress no longer counts.

    Its last commit was refused.
    """
    queue, group = QUEUES[0], "g"
    begun, go_on = list[int](), threading.Event()

    def listen(messages: list[ReceivedMessage]) -> ConsumeResult:
        begun.extend(message.queue_offset for message in messages)
        if messages[0].body == b"wait":
            assert go_on.wait(30)
        return ConsumeResult.SUCCESS

    with Connection([services.name_server.address]) as other, Producer(mq, "p") as producer:

        def ask(command: Command) -> Command:
            address = services.brokers[queue.broker].address
            return other.run(other.pool.request(address, command, 5.0))

        def fetch_as_other(offset: int) -> list[Fetched]:
            wanted = [FetchSpec(queue.topic, queue.queue_id, offset)]
            return read_fetched(ask(fetch_command("other", wanted, 10, 1 << 20, 0.0, group, "other")))

        with PushConsumer(mq, group, {"t": "*"}, listen, ordered=True) as consumer:
            began = time.time() - 1.0
            producer.send_batch([Message("t", b"x")] * 10, queue=queue)
            poll_until(lambda: admin.group_progress(group)[queue].committed_offset == 10)
            # A consumer with a full buffer does not fetch, so it does not learn of the reset.
            producer.send_batch([Message("t", b"wait"), *[Message("t", b"x")] * 1_100], queue=queue)
            engine = consumer._consuming
            assert engine is not None
            poll_until(lambda: begun[-1] == 10 and engine._queues[queue].waits_for_room)
            ask(unlock_command(engine._client_id, group, [queue]))
            ask(lock_command("other", group, [queue]))
            admin.reset_offset_by_time(group, "t", began)
            assert isinstance(fetch_as_other(10)[0].error, OffsetReset)
            assert len(fetch_as_other(0)[0].sizes) == 10
            ask(update_offset_command(group, queue.topic, queue.queue_id, 2, since=0))
            poll_until(lambda: engine._assignment.stage(queue) is Stage.ENDING)
            ask(unlock_command("other", group, [queue]))
            before = len(begun)
            go_on.set()
            poll_until(lambda: len(begun) > before + 20)
            assert begun[before:][:20] == list(range(2, 22))
