"""Test three replicas: two that rejoin with different tails, and messages due while a master is lost."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from raymq.actors.protocol import SendStatus
from raymq.actors.wire.commands.append_commands import read_append_answer
from raymq.client import Message, SimpleConsumer
from raymq.client.message_decoder import ReceivedMessage
from tests.polling import poll_until
from tests.replica_clients import Clients, are_alike, numbered, records, request_replica
from tests.replica_group import ReplicaGroup
from tests.store_replication import log_content

pytestmark = [pytest.mark.crash, pytest.mark.soak, pytest.mark.timeout(300)]


def append_alone(group: ReplicaGroup, number: int, others: tuple[int, ...], mark: bytes, count: int) -> None:
    """Let the master store messages that no other replica has, and kill it."""
    group.kill(*others)
    taken = request_replica(group, number, records(count, mark=mark))  # async acknowledges what only the master has
    assert read_append_answer(taken, count)[0] is SendStatus.SEND_OK
    group.kill(number)


@pytest.mark.parametrize("group", [{"replicas": 3, "mode": "async"}], indirect=True)
def test_two_replicas_with_tails_of_different_epochs_rejoin(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 30))
    for number in (2, 3):
        group.await_end(number, of=1)
    append_alone(group, 1, (2, 3), b"first-tail", 30)
    group.start(2, 3)
    group.await_claimed(2, 3)
    assert group.elect(2) == 2
    group.await_in_sync(2, 3)
    clients.send(*numbered(30, 40))
    group.await_end(3, of=2)
    append_alone(group, 2, (3,), b"second-tail", 50)
    group.start(3)
    group.await_claimed(3)
    assert group.elect(asked=[3]) == 3
    group.await_in_sync(3)
    group.start(1, 2)
    group.await_in_sync(1, 2, 3)
    clients.send(*numbered(40, 50))
    poll_until(lambda: are_alike(group), 20)
    assert sorted(clients.bodies()) == sorted(numbered(0, 50))
    for number in (1, 2, 3):
        assert b"-tail" not in b"".join(log_content(group.directory(number)).values())
    for designated in (1, 2):
        assert group.elect(designated) == designated
        assert sorted(clients.bodies()) == sorted(numbered(0, 50))


def read_all(clients: Clients) -> list[ReceivedMessage]:
    """Return every readable message."""
    found: list[ReceivedMessage] = []
    for queue in clients.asked(lambda: clients.pull.queues("t")):
        low, high = clients.asked(lambda queue=queue: clients.pull.offsets(queue))
        clients.pull.seek(queue, low)
        seen = low
        while seen < high:
            messages = clients.asked(lambda queue=queue: clients.pull.poll(queue, 100, 1.0))
            seen += len(messages)
            found += messages
    return found


@pytest.mark.parametrize("group", [{"replicas": 3}], indirect=True)
def test_messages_due_during_elections_come_once_and_on_time(group: ReplicaGroup, clients: Clients) -> None:
    """Kill a master and transfer the role of another one, while a message becomes due every 20 ms."""
    began = time.time()
    due = {b"timer %d" % number: began + 1.5 + number * 0.02 for number in range(250)}
    for body, at in due.items():
        clients.producer.send(Message("t", body, deliver_at=at))
    levels = {b"level %d" % number: 1.0 + number % 2 for number in range(20)}
    for body, seconds in levels.items():
        sent = time.time()
        clients.producer.send(Message("t", body, delay_level=1 if seconds == 1.0 else 2))
        due[body] = sent + seconds
    poll_until(lambda: len(clients.bodies()) > 20, 20)
    group.kill(1)
    second = group.elect()
    poll_until(lambda: len(clients.bodies()) > 100, 20)
    assert group.elect(5 - second) == 5 - second
    poll_until(lambda: len(set(clients.bodies())) == len(due), 40)
    found = read_all(clients)
    assert Counter(each.body for each in found) == Counter(dict.fromkeys(due, 1))
    early = {each.body: due[each.body] - each.store_timestamp for each in found}
    assert max(early.values()) <= 0.001, "stored times are whole milliseconds"


@pytest.mark.parametrize("group", [{"replicas": 3}], indirect=True)
def test_popped_messages_return_on_time_over_elections(group: ReplicaGroup, clients: Clients) -> None:
    bodies = numbered(0, 30)
    clients.send(*bodies)
    lent: dict[bytes, float] = {}
    done: set[bytes] = set()
    with SimpleConsumer(clients.mq, "poppers", {"t": "*"}) as consumer:

        def lend() -> bool:
            asked_at = time.time()
            seconds = 2 + len(lent) % 5
            for each in clients.asked(lambda: consumer.receive(3, invisible_duration=seconds, await_duration=1)):
                if each.body in lent:
                    continue
                lent[each.body] = asked_at + seconds
                if len(lent) % 3 == 0 and consumer.ack(each):
                    done.add(each.body)
            return len(lent) == len(bodies)

        poll_until(lend, 30)
        group.kill(1)
        second = group.elect()
        again: Counter[bytes] = Counter()

        def come_back() -> bool:
            for each in clients.asked(lambda: consumer.receive(10, invisible_duration=60, await_duration=1)):
                assert each.body not in done
                assert time.time() >= lent[each.body], "it was lent still"
                again[each.body] += 1
            return len(again) >= (len(bodies) - len(done)) // 2

        poll_until(come_back, 30)
        assert group.elect(5 - second) == 5 - second
        poll_until(lambda: come_back() and len(again) == len(bodies) - len(done), 40)
    assert set(again) == set(bodies) - done
