"""Members of a group that come, go and die: even shares, nothing lost, a dead member's queues move at once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import ExitStack

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
    consuming,
)
from tests.chaos.history import History
from tests.chaos.traffic import Traffic
from tests.integration.conftest import Services
from tests.integration.taker import Taker
from tests.member_process import MemberProcess
from tests.polling import poll_until

pytestmark = pytest.mark.integration

TAKEN_OVER_SECONDS = 10.0


@pytest.mark.parametrize("count", [2, 4, 8])
def test_messages_are_shared_out_evenly(mq: Connection, admin: Admin, count: int) -> None:
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


def test_members_join_die_and_leave_under_load_and_nothing_is_lost(
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
        poll_until(lambda: takes(members[2].pid), 20, "who joins is given a share")
        died = members.pop(0)
        since = time.monotonic()
        history.killed("member")
        died.kill()
        seconds = poll_until(lambda: history.taken_over(died.pid, since), 20, "the dead member's queues move")
        members.pop(0).stop()
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
    assert account.duplicates <= 100, "more than was in flight when the member died"


def test_what_was_done_when_its_broker_died_does_not_come_again(
    mq: Connection, services: Services, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consuming, "_COMMIT_SECONDS", 1_000.0)  # the broker is told nothing before it dies
    queue = MessageQueue("t", "broker-a", 0)
    producer = Producer(mq, "p")
    with PushConsumer(mq, "g", {"t": "*"}, taker := Taker()) as consumer:
        producer.send_batch([Message("t", b"%d" % number) for number in range(50)], queue=queue)
        poll_until(lambda: len(taker.taken) == 50, 10)
        assert admin.group_progress("g")[queue].committed_offset == 0
        services.crash_broker("broker-a")
        running = consumer._consuming
        assert running is not None
        poll_until(lambda: queue not in running._queues, 20, "the broker is gone from the routes")
        services.start_broker("broker-a")
        poll_until(lambda: queue in running._queues, 20, "the queue is back")
        producer.send(Message("t", b"50"), queue=queue, timeout=20.0)
        poll_until(lambda: b"50" in taker.bodies, 20)
    assert taker.bodies == sorted(b"%d" % number for number in range(51))
    assert admin.group_progress("g")[queue].committed_offset == 51
