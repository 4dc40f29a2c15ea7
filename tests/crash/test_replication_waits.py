"""Test acknowledgements, reads and refusals while replicas, a master or keepers hang or are down."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from raymq.actors.errors import (
    BrokerUnavailable,
    NotMaster,
    NotStored,
    RayMQError,
    StoreFollows,
    TooFewInSync,
    WriteUnknown,
)
from raymq.actors.protocol import MessageQueue, SendStatus
from raymq.actors.wire.commands import staged_write_commands, stream_plan_commands
from raymq.actors.wire.commands.append_commands import read_append_answer
from raymq.actors.wire.commands.staged_write_commands import TransactionAction
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.pop_headers import PopMessage
from raymq.client import Message
from tests.polling import poll_until
from tests.replica_clients import Clients, numbered, records, request_replica
from tests.replica_group import GROUP, ReplicaGroup

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]


def test_trap_18_hung_replica_delays_sends_only_once(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 5))
    group.pause(2)
    began = time.monotonic()
    clients.send(b"waits")
    assert group.state.in_sync == {1}
    waited = time.monotonic() - began
    began = time.monotonic()
    clients.send(*numbered(5, 55))
    assert time.monotonic() - began < waited + 3.0
    group.go_on(2)
    group.await_in_sync(1, 2)
    group.kill(1)
    group.wipe(1)
    group.elect()
    assert set(clients.bodies()) == {b"waits", *numbered(0, 55)}


@pytest.mark.long
@pytest.mark.parametrize("group", [{"min_in_sync": 2}], indirect=True)
def test_too_few_in_sync_replicas_refuse_writes(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 5))
    group.kill(2)
    group.await_in_sync(1)
    before = group.status(1).end[0]
    with pytest.raises(TooFewInSync, match="in-sync replicas not enough"):
        request_replica(group, 1, records(3))
    with pytest.raises(NotStored) as refused:
        clients.producer.send(Message("t", b"refused"))
    assert refused.value.code == "SYSTEM_ERROR"
    assert group.status(1).end[0] == before
    assert sorted(clients.bodies()) == numbered(0, 5)
    group.start(2)
    group.await_in_sync(1, 2)
    clients.send(b"taken")
    assert sorted(clients.bodies()) == [*numbered(0, 5), b"taken"]


@pytest.mark.parametrize("group", [{"min_in_sync": 2}], indirect=True)
def test_append_waiting_while_set_shrinks_is_not_send_ok(group: ReplicaGroup, clients: Clients) -> None:
    group.pause(2)
    status, _ = read_append_answer(request_replica(group, 1, records(1), 10.0), 1)
    assert status in {SendStatus.SLAVE_NOT_AVAILABLE, SendStatus.FLUSH_SLAVE_TIMEOUT}


@pytest.mark.parametrize(
    "group", [pytest.param({"mode": "async"}, marks=pytest.mark.long), {"mode": "sync"}], indirect=True
)
def test_trap_30_master_with_expired_lease_acknowledges_nothing(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 20))
    group.await_end(2, of=1)
    outcomes: list[object] = []

    def send(number: int) -> None:
        try:
            outcomes.append(
                read_append_answer(request_replica(group, 1, records(1, mark=b"late%d" % number), 30.0), 1)[0]
            )
        except RayMQError as error:
            outcomes.append(error)

    group.pause(1)
    threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    assert group.elect(asked=[2]) == 2
    clients.send(*numbered(20, 40))
    group.go_on(1)
    for thread in threads:
        thread.join()
    assert all(isinstance(each, StoreFollows | WriteUnknown | BrokerUnavailable) for each in outcomes), outcomes
    group.await_in_sync(1, 2)
    assert sorted(clients.bodies()) == sorted(numbered(0, 40))
    group.elect(1)
    assert sorted(clients.bodies()) == sorted(numbered(0, 40))


@pytest.mark.parametrize(
    "group", [pytest.param({"mode": "async"}, marks=pytest.mark.long), {"mode": "sync"}], indirect=True
)
def test_trap_3_consumers_read_only_up_to_high_watermark(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 4))
    group.await_end(2, of=1)
    queue = MessageQueue("t", GROUP, 0)
    seen = poll_until(lambda: clients.pull.offsets(queue), 10)
    group.pause(2)
    appending = threading.Thread(target=lambda: request_replica(group, 1, records(5), 10.0))
    appending.start()
    end = group.status(1).confirmed[0]
    poll_until(lambda: group.status(1).end[0] > end, 5)
    while 2 in group.state.in_sync:
        assert clients.pull.offsets(queue) == seen or 2 not in group.state.in_sync
    appending.join()
    poll_until(lambda: clients.pull.offsets(queue)[1] == seen[1] + 5, 10)


def test_master_with_expired_lease_answers_no_waiting_pop(group: ReplicaGroup, clients: Clients) -> None:
    """Consumers of the next master may have processed the message already."""

    def pop(seconds: float, wait: float) -> Command:
        return PopMessage("poppers", "t", -1, 1, int(seconds * 1000), int(wait * 1000), 0, 0).command()

    clients.send(b"once")
    assert request_replica(group, 1, pop(1.0, 5.0), 10.0).body
    group.await_end(2, of=1)

    async def park() -> asyncio.Future[Command]:
        return asyncio.ensure_future(group.pool.request(group.addresses[1], pop(60.0, 30.0), 60.0))

    parked = group.run(park())
    request_replica(
        group, 1, staged_write_commands.ask_writes_command("broker-x", {})
    )  # after it, on the same connection
    group.pause(1)
    assert group.elect(asked=[2]) == 2
    assert poll_until(lambda: clients.found(lambda: request_replica(group, 2, pop(60.0, 1.0), 5.0)), 15).body
    group.go_on(1)

    async def outcome() -> object:
        try:
            return (await parked).body
        except RayMQError as error:
            return error

    assert isinstance(group.run(outcome()), RayMQError)


@pytest.mark.parametrize("group", [{"mode": "async"}], indirect=True)
def test_async_replication_waits_for_no_replica(group: ReplicaGroup, clients: Clients) -> None:
    group.pause(2)
    began = time.monotonic()
    assert read_append_answer(request_replica(group, 1, records(5)), 5)[0] is SendStatus.SEND_OK
    assert 2 in group.state.in_sync or time.monotonic() - began > 2.0
    group.go_on(2)
    group.await_in_sync(1, 2)
    group.await_end(2, of=1)


def test_master_without_keepers_refuses_writes_until_they_return(group: ReplicaGroup, clients: Clients) -> None:
    clients.send(*numbered(0, 5))
    before = group.status(1).epoch
    group.keepers.kill(1)

    def refused() -> bool:
        try:
            request_replica(group, 1, records(1, mark=b"refused"))
        except NotMaster:
            return True
        except WriteUnknown:  # its lease ended while the append waited for the replica
            return False
        return False

    poll_until(refused, 10)
    end = group.status(1).end[0]
    assert refused()
    assert group.status(1).end[0] == end
    group.keepers.start(1)
    clients.send(b"goes on")
    assert group.status(1).epoch == before
    assert b"goes on" in clients.bodies()


def test_decisions_and_plans_are_visible_once_replicated(group: ReplicaGroup, clients: Clients) -> None:
    """A broker appended rows of a write that the next master had as open, and whose driver then aborted it; a task read
    with a plan that the next master did not have.
    """
    write, other = f"{'a' * 32}-{GROUP}", "broker-x"
    request_replica(group, 1, staged_write_commands.open_write_command(write, "t", "", 0))
    group.pause(2)
    kept = group.directory(1) / "raymq" / "state"

    def is_stored(content: bytes) -> bool:
        return any(content in path.read_bytes() for path in kept.iterdir())

    changes: list[tuple[Command, Callable[[], bool]]] = [
        (
            stream_plan_commands.plan_batch_command("s", "q", 0, b"a plan"),
            lambda: is_stored(b"a plan"),
        ),
        (
            staged_write_commands.decide_write_command(write, TransactionAction.COMMIT, {other: {"part": 5}}),
            lambda: is_stored(b"committed"),
        ),
    ]
    for change, is_made in changes:
        threading.Thread(target=clients.found, args=[partial(request_replica, group, 1, change, 2.0)]).start()
        poll_until(is_made, 5)

    def visible_changes() -> list[bool]:
        """Return for each query whether its answer shows the change."""
        questions = (
            (
                staged_write_commands.ask_writes_command(other, {write: 9.0}),
                lambda visible_changes: (
                    staged_write_commands.read_instructions(visible_changes)[write].what == "append"
                ),
            ),
            (
                stream_plan_commands.stream_plans_command("s", "q"),
                lambda visible_changes: bool(stream_plan_commands.read_stream_plans(visible_changes).plans),
            ),
        )
        found = []
        for question, is_told in questions:
            try:
                found.append(is_told(request_replica(group, 1, question, 0.2)))
            except BrokerUnavailable:
                found.append(False)
        return found

    while 2 in group.state.in_sync:
        was_told = visible_changes()
        assert not any(was_told) or 2 not in group.state.in_sync, was_told
    group.go_on(2)
    poll_until(lambda: all(visible_changes()), 20)
