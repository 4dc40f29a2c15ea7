"""Test members of a group that join, leave and die: even shares, no loss, fast takeover of queues."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from raymq.client import (
    Admin,
    Connection,
    ConsumeResult,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
    SubscriptionMismatch,
)
from raymq.client.members.assignment_strategies import STRATEGIES, get_strategy
from raymq.client.push import push_consumer_engine as consuming
from raymq.client.push.consume_message_service import ConsumeMessageService
from raymq.client.push.process_queue import ProcessQueue
from raymq.client.push.rebalance import Stage
from raymq.client.requests.offset_requests import OffsetRequests
from tests.chaos.history import History
from tests.chaos.traffic import Traffic
from tests.integration.conftest import Services
from tests.integration.recording_listener import RecordingListener
from tests.member_process import MemberProcess
from tests.polling import poll_until

pytestmark = pytest.mark.integration

TAKEN_OVER_SECONDS = 10.0
#: Seconds within which a success is committed.
COMMITTED_SECONDS = 1.0


@pytest.mark.parametrize("count", [2, 4, 8])
def test_members_share_messages_evenly(mq: Connection, admin: Admin, count: int) -> None:
    admin.create_topic("many", queues=16)
    queues = PullConsumer(mq, "reader").queues("many")
    taken: Counter[int] = Counter()
    lock = threading.Lock()

    def member(number: int) -> PushConsumer:
        def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
            with lock:
                taken[number] += len(messages)
            return ConsumeResult.SUCCESS

        return PushConsumer(mq, "g", {"many": "*"}, listener, threads=1)

    def settled() -> bool:
        owners = Counter(p.owner for q, p in admin.group_progress("g").items() if q.topic == "many")
        return len(owners) == count and None not in owners

    with ExitStack() as stack, Producer(mq, "p") as producer:
        for number in range(count):
            stack.enter_context(member(number))
        poll_until(settled, 10)
        for queue in queues:
            producer.send_batch([Message("many", b"x") for _ in range(10)], queue=queue)
        poll_until(lambda: taken.total() >= 10 * len(queues), 20)
    fair = 10 * len(queues) / count
    assert taken.total() == 10 * len(queues)
    assert all(abs(taken[number] - fair) <= fair / 10 for number in range(count)), taken


def test_no_message_is_lost_when_members_join_die_and_leave(
    mq: Connection, services: Services, admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    traffic = Traffic("t", [Producer(mq, "p1"), Producer(mq, "p2")])
    account = traffic.account
    history = History(account)

    def member() -> MemberProcess:
        return MemberProcess(services.name_server.address, "g", "t", history.told)

    def takes(pid: int) -> bool:
        return any(each.member == pid for each in list(history._deliveries))

    members = [member(), member()]
    traffic.start()
    try:
        poll_until(lambda: all(takes(each.pid) for each in members), 20)
        members.append(member())
        history.changed()
        poll_until(lambda: takes(members[2].pid), 20, "who joins is given a share")
        died = members.pop(0)
        since = time.monotonic()
        history.member_killed(died.pid)
        died.kill()
        seconds = poll_until(lambda: history.taken_over(died.pid, since), 20, "the dead member's queues move")
        members.pop(0).stop()
        history.changed()
        goal = len(account.acknowledged) + 100
        poll_until(lambda: len(account.acknowledged) > goal, 20)
    finally:
        traffic.stop()
        poll_until(lambda: not account.lost, 20, "every acknowledged message arrives")
        for each in members:
            each.stop()
    with capsys.disabled():
        print(f"\n  taken over {seconds:.1f} s after the kill; {account.line('members')}", end="")
    assert seconds < TAKEN_OVER_SECONDS
    assert account.ghosts == set()
    causes, unexplained = history.duplicates()
    assert not unexplained, "\n\n".join(unexplained)
    done_last = sum(each.member == died.pid and each.at > since - COMMITTED_SECONDS for each in history._deliveries)
    assert causes.total() == account.duplicates <= 100 + done_last, "more than was in flight when the member died"


def settled_owners(admin: Admin, members: list[PushConsumer], strategy: str) -> dict[MessageQueue, str]:
    """Return the owner of each queue of "many" once brokers and members agree on it; {} before."""
    reported = {q: found.owner or "" for q, found in admin.group_progress("g").items() if q.topic == "many"}
    held = {q: client_id(member) for member in members for q in engine_of(member)._queues if q.topic == "many"}
    ids = [client_id(member) for member in members]
    shares = {each: get_strategy(strategy)(sorted(reported), ids, each, reported) for each in ids}
    wanted = {queue: each for each, share in shares.items() for queue in share}
    return reported if reported == held == wanted else {}


def engine_of(member: PushConsumer) -> consuming.PushConsumerEngine:
    assert member._consuming is not None
    return member._consuming


def client_id(member: PushConsumer) -> str:
    return engine_of(member)._client_id


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_progress_names_owner_of_each_queue(mq: Connection, admin: Admin, strategy: str) -> None:
    admin.create_topic("many", queues=8)
    takers = [RecordingListener() for _ in range(3)]
    with ExitStack() as stack, Producer(mq, "p") as producer:
        members = [PushConsumer(mq, "g", {"many": "*"}, taker, strategy=strategy) for taker in takers]
        for member in members:
            stack.enter_context(member)
        queues = poll_until(lambda: settled_owners(admin, members, strategy), 20)

        def owners_match_deliveries() -> bool:
            for queue in queues:
                producer.send(Message("many", b"x"), queue=queue)
            owners = settled_owners(admin, members, strategy)
            taken = {
                m.queue: client_id(member) for member, t in zip(members, takers, strict=True) for m in t.taken[-20:]
            }
            return bool(owners) and taken == owners

        poll_until(owners_match_deliveries, 20)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rolling_restart_moves_only_necessary_queues(
    mq: Connection, admin: Admin, strategy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Replace each of ten consumers in turn, and count how often a queue was taken over.

    A queue must move when its owner leaves, and when the new member is due a share.
    """
    admin.create_topic("many", queues=20)
    taken: list[MessageQueue] = []
    open_queue = ConsumeMessageService.open

    def watched(self: ConsumeMessageService, queue: MessageQueue, offset: int) -> ProcessQueue:
        taken.extend([queue] if queue.topic == "many" else [])
        return open_queue(self, queue, offset)

    monkeypatch.setattr(ConsumeMessageService, "open", watched)
    members: list[PushConsumer] = []

    def joins() -> dict[MessageQueue, str]:
        members.append(PushConsumer(mq, "g", {"many": "*"}, RecordingListener(), strategy=strategy, threads=1))
        members[-1].start()
        return poll_until(lambda: settled_owners(admin, members, strategy), 30)

    owners: dict[MessageQueue, str] = {}
    for _ in range(10):
        owners = joins()
    taken.clear()
    needed = 0
    for _ in range(10):
        leaves = members.pop(0)
        needed += list(owners.values()).count(client_id(leaves))
        leaves.shutdown()
        poll_until(lambda: settled_owners(admin, members, strategy), 30)
        owners = joins()
        needed += list(owners.values()).count(client_id(members[-1]))
    with capsys.disabled():
        print(f"\n  {strategy}: {len(taken)} times a queue was taken over, {needed} had to be", end="")
    for member in members:
        member.shutdown()
    if strategy != "average":
        assert len(taken) == needed


def test_last_maximum_of_retries_applies_to_group(mq: Connection, admin: Admin) -> None:
    taker = RecordingListener(lambda message: ConsumeResult.RECONSUME_LATER)
    with (
        PushConsumer(mq, "g", {"t": "*"}, taker, max_reconsume_times=5),
        PushConsumer(mq, "g", {"t": "*"}, taker, max_reconsume_times=1),
        PushConsumer(mq, "g", {"t": "*"}, taker),
        Producer(mq, "p") as producer,
    ):
        producer.send(Message("t", b"bad"))
        poll_until(lambda: admin.dlq_list("g"), 20)
    assert [times for _, times in taker.deliveries] == [0, 1]


def test_members_with_different_consume_types_are_refused(mq: Connection, admin: Admin) -> None:
    with (
        PushConsumer(mq, "g", {"t": "*"}, RecordingListener()),
        pytest.raises(SubscriptionMismatch, match=r"CONSUME_POP/CLUSTERING.*CONSUME_PASSIVELY/CLUSTERING"),
    ):
        SimpleConsumer(mq, "g", {"t": "*"})
    broadcast = PushConsumer(mq, "g", {"t": "*"}, RecordingListener(), model=MessageModel.BROADCASTING)
    with SimpleConsumer(mq, "g", {"t": "*"}), pytest.raises(SubscriptionMismatch):
        broadcast.start()
    with broadcast:
        pass


@pytest.mark.long
def test_processed_messages_stay_processed_after_broker_crash(
    mq: Connection, services: Services, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consuming, "_COMMIT_SECONDS", 1_000.0)  # no commit reaches the broker before it dies
    queue = MessageQueue("t", "broker-a", 0)
    producer = Producer(mq, "p")
    with PushConsumer(mq, "g", {"t": "*"}, taker := RecordingListener()) as consumer:
        producer.send_batch([Message("t", b"%d" % number) for number in range(50)], queue=queue)
        poll_until(lambda: len(taker.taken) == 50, 10)
        assert admin.group_progress("g")[queue].committed_offset == 0
        services.crash_broker("broker-a")
        engine = consumer._consuming
        assert engine is not None
        poll_until(lambda: queue not in engine._queues, 20, "the broker is gone from the routes")
        services.start_broker("broker-a")
        poll_until(lambda: queue in engine._queues, 20, "the queue is back")
        producer.send(Message("t", b"50"), queue=queue, timeout=20.0)
        poll_until(lambda: b"50" in taker.bodies, 20)
    assert taker.bodies == sorted(b"%d" % number for number in range(51))
    assert admin.group_progress("g")[queue].committed_offset == 51


def test_shutdown_during_rebalance_commits_released_queues(
    services: Services, mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last commit of a queue was cancelled with its round, so processed messages were redelivered."""
    admin.create_topic("u", queues=1)
    held, go_on = set[str](), threading.Event()
    commit = OffsetRequests.commit

    async def held_up(self: OffsetRequests, queue: MessageQueue, *place: Any, **more: Any) -> None:
        if queue.topic in held:
            await asyncio.to_thread(go_on.wait, 30)
        await commit(self, queue, *place, **more)

    monkeypatch.setattr(OffsetRequests, "commit", held_up)
    queues = [MessageQueue("t", broker, number) for broker in services.names for number in range(2)]
    taker = RecordingListener()
    leaving = PushConsumer(mq, "g", {"t": "*", "u": "*"}, taker)
    leaving.start()
    engine = leaving._consuming
    assert engine is not None
    with Connection([services.name_server.address]) as other, Producer(mq, "p") as producer:
        held |= {"t", "u"}
        # While this commit hangs, no other commit begins but the last one of a released queue.
        for broker in services.names:
            producer.send(Message("u", b"x"), queue=MessageQueue("u", broker, 0))
        poll_until(lambda: engine._offset_committer._under_way.keys() == set(services.names), 20)
        for queue in queues:
            producer.send(Message("t", b"x"), queue=queue)
        poll_until(lambda: len(taker.bodies) == 6, 20)
        staying = PushConsumer(other, "g", {"t": "*", "u": "*"}, taker)
        staying.pause()
        with staying, ThreadPoolExecutor(1) as threads:
            poll_until(lambda: set(queues) & engine._assignment.at(Stage.COMMITTING), 20)
            stopping = threads.submit(leaving.shutdown)
            poll_until(lambda: all(task.done() for task in engine._tasks), 20)
            go_on.set()
            stopping.result(30)
            progress = admin.group_progress("g")
            assert [progress[queue].committed_offset for queue in queues] == [1] * 4
