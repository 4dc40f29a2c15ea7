"""Test that a group without permission to consume gets nothing by FETCH, PULL or POP, at once or after a wait."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from raymq.actors.broker.leader_service import LeaderService
from raymq.actors.errors import PermissionDenied, RayMQError, SubscriptionMismatch
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.actors.filter.tag_expression import Subscription
from raymq.actors.protocol import BrokerSpec
from raymq.actors.wire import error_codec
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands import admin_commands, append_commands, fetch_commands, group_commands
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.headers.admin_headers import UpdateAndGetGroupForbidden
from raymq.actors.wire.headers.pop_headers import Notification, PopMessage
from raymq.actors.wire.headers.pull_headers import HAS_SUBSCRIPTION, MAY_PARK, PullMessage
from raymq.client import Message
from tests.broker_clients import BareFrameClient, SocketBrokerClient
from tests.leading import start_leader
from tests.polling import poll_until
from tests.unit.actors.bench import encoded

pytestmark = pytest.mark.contract
WAIT_MS = 20_000


def fetch(at: int, wait_ms: int, *, goes_on: bool = False) -> Command:
    wanted = [FetchSpec("t", 0, at)]
    session = f"s{time.monotonic_ns()}"
    return fetch_commands.fetch_command(session, wanted, 100, 1 << 20, wait_ms / 1000, "g", "member", goes_on=goes_on)


def continuous_fetch(at: int, wait_ms: int) -> Command:
    return fetch(at, wait_ms, goes_on=True)


def pull(at: int, wait_ms: int) -> Command:
    flags = HAS_SUBSCRIPTION | (MAY_PARK if wait_ms else 0)
    return PullMessage("g", "t", 0, at, 32, flags, 0, wait_ms, "*").command()


def pop(_: int, wait_ms: int) -> Command:
    return PopMessage("g", "t", 0, 32, 60_000, wait_ms, int(time.time() * 1000), 0).command()


WAYS = [fetch, continuous_fetch, pull, pop]


class ServedGroup:
    """A broker with topic t of one queue with one message, and with group g."""

    def __init__(self, loop: EventLoopThread, broker: LeaderService) -> None:
        self.loop = loop
        self.broker = broker
        self.done(admin_commands.create_topic_command("t", 1, ordered=False))
        self.done(group_commands.create_group_command("g"))
        self.send()

    def begin(self, command: Command) -> Future[Command]:
        return SocketBrokerClient(self.loop, self.broker).begin(command)

    def done(self, command: Command) -> Command:
        answer = self.begin(command).result(10)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer

    def send(self, *, singly: bool = False) -> None:
        records, sizes = encoded(Message("t", b"x"))
        if not singly:
            self.done(append_commands.append_command("t", 0, records, sizes))
            return
        one = Command(RequestCode.APPEND_ONE, body=records, serialization=Serialization.MSGPACK)
        # offered to a waiting fetch before other readers see it
        answer = BareFrameClient(self.loop, self.broker).ask(one)
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    def stop_consuming(self, stopped: bool) -> None:
        body = json.dumps({"groupName": "g", "consumeEnable": not stopped}).encode()
        self.done(Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body))

    def forbid(self, stopped: bool) -> None:
        self.done(UpdateAndGetGroupForbidden("g", "t", not stopped).command())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedGroup]:
    loop = EventLoopThread("door")
    sizes = {"commitlog_file_bytes": 1 << 20, "index_slots": 1_000, "index_entries": 10_000}
    spec = BrokerSpec("broker-a", "test", str(tmp_path), "127.0.0.1", (), append_wait_ms=60_000, store=sizes)
    broker = loop.run(start_leader(spec, "n"))
    yield ServedGroup(loop, broker)
    loop.run(broker.stop())
    loop.stop()


def error_or_bytes(answer: Command) -> RayMQError | int:
    """Return the refusal, or the number of message bytes."""
    if answer.code == ResponseCode.SUCCESS and "parts" in answer.fields:
        parts = fetch_commands.read_fetched(answer)
        errors = [part.error for part in parts if part.error is not None]
        return errors[0] if errors else sum(int(part.sizes.sum()) for part in parts)
    if answer.code == ResponseCode.SUCCESS:
        return len(answer.body)
    return error_codec.error_from_response(answer)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stop", [ServedGroup.stop_consuming, ServedGroup.forbid])
def test_reads_are_refused_until_permission_returns(
    served: ServedGroup, way: Callable[[int, int], Command], stop: Callable[[ServedGroup, bool], None]
) -> None:
    """FETCH, which RayMQ's own consumers use, returned everything: only PULL and POP checked."""
    stop(served, True)
    result = error_or_bytes(served.begin(way(0, 0)).result(10))
    assert isinstance(result, PermissionDenied)
    assert str(result) in (
        "subscription group no permission, g",
        "the consumer group[g] is forbidden for topic[t]",
    )
    stop(served, False)
    result = error_or_bytes(served.begin(way(0, 0)).result(10))
    assert isinstance(result, int)
    assert result > 0


@pytest.mark.parametrize("singly", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stop", [ServedGroup.stop_consuming, ServedGroup.forbid])
def test_waiting_read_is_refused_after_permission_loss(
    served: ServedGroup, way: Callable[[int, int], Command], stop: Callable[[ServedGroup, bool], None], singly: bool
) -> None:
    if way is pop:
        served.done(pop(0, 0))  # the stored message is popped
    waiting = served.begin(way(1, WAIT_MS))
    poll_until(lambda: len(served.broker.polls) == 1)
    stop(served, True)
    served.send(singly=singly)
    assert isinstance(error_or_bytes(waiting.result(10)), PermissionDenied)


@pytest.mark.parametrize("singly", [False, True])
@pytest.mark.parametrize("way", [fetch, continuous_fetch])
def test_waiting_fetch_of_older_subscription_is_refused(
    served: ServedGroup, way: Callable[[int, int], Command], singly: bool
) -> None:
    """Refuse it at the next message, whatever happens to its queues meanwhile."""
    doors = [SocketBrokerClient(served.loop, served.broker) for _ in range(2)]
    older, newer = (
        group_commands.heartbeat_command(group_commands.Member(name, "g", {"t": Subscription("t")}, version=version))
        for version, name in enumerate(("member", "newer"))
    )
    assert doors[0].ask(older).code == ResponseCode.SUCCESS
    waiting = served.begin(way(1, WAIT_MS))
    poll_until(lambda: len(served.broker.polls) == 1)
    assert doors[1].ask(newer).code == ResponseCode.SUCCESS
    served.send(singly=singly)
    assert isinstance(error_or_bytes(waiting.result(10)), SubscriptionMismatch)


def test_notification_is_refused_without_permission(served: ServedGroup) -> None:
    ask = Notification("g", "t", 0, 0, int(time.time() * 1000)).command()
    assert served.done(ask).fields["hasMsg"] == "true"
    served.stop_consuming(True)
    assert isinstance(error_or_bytes(served.begin(ask).result(10)), PermissionDenied)


def test_permission_of_one_group_leaves_others_unchanged(served: ServedGroup) -> None:
    served.forbid(True)
    anybody = fetch_commands.fetch_command("s", [FetchSpec("t", 0, 0)], 100, 1 << 20, 0.0, "h", "member")
    result = error_or_bytes(served.begin(anybody).result(10))
    assert isinstance(result, int)
    assert result > 0
