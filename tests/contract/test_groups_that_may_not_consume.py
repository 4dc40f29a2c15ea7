"""A group that may not consume gets nothing, however it asks: by FETCH, PULL or POP, at once or after a wait."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from raymq.actors.broker.service import BrokerService
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
from tests.broker_clients import BareDoor, SocketBrokerClient
from tests.polling import poll_until
from tests.unit.actors.bench import encoded

pytestmark = pytest.mark.contract
WAIT_MS = 20_000


def fetching(at: int, wait_ms: int, *, goes_on: bool = False) -> Command:
    wanted = [FetchSpec("t", 0, at)]
    session = f"s{time.monotonic_ns()}"
    return fetch_commands.fetch_command(session, wanted, 100, 1 << 20, wait_ms / 1000, "g", "member", goes_on=goes_on)


def going_on(at: int, wait_ms: int) -> Command:
    return fetching(at, wait_ms, goes_on=True)


def pulling(at: int, wait_ms: int) -> Command:
    flags = HAS_SUBSCRIPTION | (MAY_PARK if wait_ms else 0)
    return PullMessage("g", "t", 0, at, 32, flags, 0, wait_ms, "*").command()


def popping(_: int, wait_ms: int) -> Command:
    return PopMessage("g", "t", 0, 32, 60_000, wait_ms, int(time.time() * 1000), 0).command()


WAYS = [fetching, going_on, pulling, popping]


class Served:
    """A broker with topic t of one queue, which has one message, and group g."""

    def __init__(self, loop: EventLoopThread, broker: BrokerService) -> None:
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
        answer = BareDoor(self.loop, self.broker).ask(one)  # offered to who waits before it is seen by others
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    def stop_consuming(self, stopped: bool) -> None:
        told = json.dumps({"groupName": "g", "consumeEnable": not stopped}).encode()
        self.done(Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=told))

    def forbid(self, stopped: bool) -> None:
        self.done(UpdateAndGetGroupForbidden("g", "t", not stopped).command())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    loop = EventLoopThread("door")
    sizes = {"commitlog_file_bytes": 1 << 20, "index_slots": 1_000, "index_entries": 10_000}
    spec = BrokerSpec("broker-a", "test", str(tmp_path), "127.0.0.1", (), append_wait_ms=60_000, store=sizes)
    broker = loop.run(BrokerService.start(spec, "n"))
    yield Served(loop, broker)
    loop.run(broker.stop())
    loop.stop()


def outcome(answer: Command) -> RayMQError | int:
    """The refusal, or how many bytes of messages came."""
    if answer.code == ResponseCode.SUCCESS and "parts" in answer.fields:
        parts = fetch_commands.read_fetched(answer)
        errors = [part.error for part in parts if part.error is not None]
        return errors[0] if errors else sum(int(part.sizes.sum()) for part in parts)
    if answer.code == ResponseCode.SUCCESS:
        return len(answer.body)
    return error_codec.error_from_response(answer)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stop", [Served.stop_consuming, Served.forbid])
def test_it_is_refused_until_it_may_again(
    served: Served, way: Callable[[int, int], Command], stop: Callable[[Served, bool], None]
) -> None:
    """FETCH, which our own consumers use, gave everything: only PULL and POP asked."""
    stop(served, True)
    told = outcome(served.begin(way(0, 0)).result(10))
    assert isinstance(told, PermissionDenied)
    assert str(told) in (
        "subscription group no permission, g",
        "the consumer group[g] is forbidden for topic[t]",
    )
    stop(served, False)
    told = outcome(served.begin(way(0, 0)).result(10))
    assert isinstance(told, int)
    assert told > 0


@pytest.mark.parametrize("singly", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stop", [Served.stop_consuming, Served.forbid])
def test_who_waits_gets_nothing_any_more(
    served: Served, way: Callable[[int, int], Command], stop: Callable[[Served, bool], None], singly: bool
) -> None:
    if way is popping:
        served.done(popping(0, 0))  # the message that is there is lent
    waiting = served.begin(way(1, WAIT_MS))
    poll_until(lambda: len(served.broker.polls) == 1)
    stop(served, True)
    served.send(singly=singly)
    assert isinstance(outcome(waiting.result(10)), PermissionDenied)


@pytest.mark.parametrize("singly", [False, True])
@pytest.mark.parametrize("way", [fetching, going_on])
def test_a_member_of_a_lower_version_that_waits_gets_nothing_any_more(
    served: Served, way: Callable[[int, int], Command], singly: bool
) -> None:
    """Refuse it at the next message, whatever the member does about its queues meanwhile."""
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
    assert isinstance(outcome(waiting.result(10)), SubscriptionMismatch)


def test_nor_is_it_told_that_there_is_something(served: Served) -> None:
    ask = Notification("g", "t", 0, 0, int(time.time() * 1000)).command()
    assert served.done(ask).fields["hasMsg"] == "true"
    served.stop_consuming(True)
    assert isinstance(outcome(served.begin(ask).result(10)), PermissionDenied)


def test_another_group_is_none_of_its_business(served: Served) -> None:
    served.forbid(True)
    anybody = fetch_commands.fetch_command("s", [FetchSpec("t", 0, 0)], 100, 1 << 20, 0.0, "h", "member")
    told = outcome(served.begin(anybody).result(10))
    assert isinstance(told, int)
    assert told > 0
