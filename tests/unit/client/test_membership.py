"""Test heartbeats to brokers: unreachable or refusing brokers at a start, leaving, and logging."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from raymq.actors.errors import (
    BrokerUnavailable,
    ConnectionLost,
    GroupNotFound,
    ServerBusy,
    SubscriptionMismatch,
    Timeout,
    TopicNotFound,
)
from raymq.actors.filter.tag_expression import Subscription
from raymq.actors.protocol import TopicRoute
from raymq.actors.wire.commands.group_commands import Member
from raymq.client.members.membership import HEARTBEAT_SECONDS, RETRY_SECONDS, Membership

TIMES_OUT = Timeout("b", "no answer within 3 s")
LOST = ConnectionLost("b", "it is closed")
UNAVAILABLE = BrokerUnavailable("b")
MISMATCH = SubscriptionMismatch("another subscription")
BUSY = ServerBusy("as many memberships as there may be")


class Cluster:
    """A fake connection to brokers, each with the error of its heartbeats."""

    def __init__(self, **met: Exception | None) -> None:
        self.met = met
        self.routes = self.pool = self
        #: The brokers that received a leave request.
        self.left: list[str] = []
        self.on_lost: set[Callable[[str], None]] = set()
        self.on_change: set[Callable[[], None]] = set()
        #: The number of heartbeats that were sent.
        self.heartbeats = 0

    async def get_all(self, topics: Iterable[str], *, fresh: bool = False) -> dict[str, TopicRoute]:
        addresses = {f"broker-{address}": address for address in self.met}
        return {topic: TopicRoute(topic, (), addresses) for topic in topics}

    def seconds_until_stale(self, _: Iterable[str]) -> float:
        return 30.0

    async def get(self, address: str, _: float) -> Peer:
        if self.met[address] is UNAVAILABLE:
            raise UNAVAILABLE
        return Peer(self, address)

    async def request(self, address: str, *_: Any) -> None:
        self.left.append(address)


class MissingTopic(Cluster):
    """A cluster whose topic is missing until `is_made`; then only broker `a` has it."""

    is_made = False
    #: The name server's answer before. The default is its answer for a dead letter queue that does not exist yet.
    before: TopicRoute | TopicNotFound = TopicRoute("t", ())

    def __init__(self, **met: Exception | None) -> None:
        super().__init__(**met)
        self.peers = {address: Peer(self, address) for address in met}

    @property
    def missing_topics(self) -> MissingTopic:
        return self

    async def get(self, address: str, _: float) -> Peer:
        return self.peers[address]  # one connection per broker

    def wait_for(self, *_: Any) -> None:
        pass

    def invalidate(self, _: str) -> None:
        pass

    async def read_masters(self) -> frozenset[str]:
        return frozenset(self.met)

    async def get_all(self, topics: Iterable[str], *, fresh: bool = False) -> dict[str, Any]:
        route = TopicRoute("t", (), {"broker-a": "a"}) if self.is_made else self.before
        return dict.fromkeys(topics, route)

    async def request(self, address: str, *_: Any) -> None:
        self.left.append(address)
        raise GroupNotFound("g")


class NameServersAway(Cluster):
    """A cluster in which no name server answers, so no route is known."""

    async def get_all(self, topics: Iterable[str], *, fresh: bool = False) -> dict[str, Any]:
        return {topic: BrokerUnavailable("name server") for topic in topics}


class Peer:
    def __init__(self, cluster: Cluster, address: str) -> None:
        self.cluster, self.address = cluster, address

    async def request(self, *_: Any) -> None:
        error = self.cluster.met[self.address]
        self.cluster.heartbeats += 1
        if error is not None:
            raise error


def membership(cluster: Cluster) -> Membership:
    return Membership(cluster, Member("me", "g", {"t": Subscription("t")}), clock=lambda: 0.0)  # type: ignore[arg-type]


def test_leave_reaches_brokers_without_a_heartbeat_answer() -> None:
    """Cover a regression: brokers kept the member of a cancelled start while its connection lived.

    Its share of the queues was not consumed in that time.
    """
    cluster = Cluster(a=None, b=TIMES_OUT, c=UNAVAILABLE, d=MISMATCH)
    mine = membership(cluster)
    asyncio.run(mine.heartbeat())
    asyncio.run(mine.leave())
    assert cluster.left == ["a", "b", "d"]


@pytest.mark.parametrize("error", [TIMES_OUT, LOST, UNAVAILABLE], ids=repr)
def test_start_needs_one_reachable_broker(error: Exception) -> None:
    cluster = Cluster(a=None, b=error)
    mine = membership(cluster)
    asyncio.run(mine.heartbeat(strict=True))
    assert [mine.is_unreached(address) for address in "abc"] == [False, True, False]
    cluster.met["b"] = None
    asyncio.run(mine.heartbeat())
    assert not mine.is_unreached("b"), "the next heartbeat has greeted it"
    cluster.met["b"] = error
    asyncio.run(mine.heartbeat())
    assert not mine.is_unreached("b"), "it knows the member"


def test_start_fails_if_no_broker_answers() -> None:
    with pytest.raises(Timeout):
        asyncio.run(membership(Cluster(a=TIMES_OUT, b=UNAVAILABLE)).heartbeat(strict=True))


@pytest.mark.parametrize("refusal", [MISMATCH, BUSY], ids=repr)
@pytest.mark.parametrize("other", [None, TIMES_OUT], ids=repr)
def test_start_fails_if_a_broker_refuses_the_member(refusal: Exception, other: Exception | None) -> None:
    with pytest.raises(type(refusal)):
        asyncio.run(membership(Cluster(a=other, b=refusal)).heartbeat(strict=True))


def test_later_refusal_keeps_the_broker_unreached() -> None:
    cluster = Cluster(a=None, b=TIMES_OUT)
    mine = membership(cluster)
    asyncio.run(mine.heartbeat(strict=True))
    cluster.met["b"] = MISMATCH
    asyncio.run(mine.heartbeat())
    assert mine.is_unreached("b")


def test_healthy_member_sleeps_until_the_next_heartbeat() -> None:
    cluster = Cluster(a=None, b=TIMES_OUT)
    mine = membership(cluster)
    asyncio.run(mine.heartbeat())
    assert mine._seconds_until_due() == 1.0, "one broker did not answer"
    cluster.met["b"] = None
    asyncio.run(mine.heartbeat())
    assert mine._seconds_until_due() == HEARTBEAT_SECONDS


@pytest.mark.parametrize("is_lost", [True, False])
def test_lost_connection_or_new_route_wakes_a_member(is_lost: bool) -> None:
    asyncio.run(wake_member(is_lost))


async def wake_member(is_lost: bool) -> None:
    cluster = Cluster(a=None)
    mine, beats = membership(cluster), asyncio.Queue[None]()
    await mine.heartbeat()
    keeping = asyncio.create_task(mine.keep(lambda: beats.put_nowait(None)))
    await asyncio.sleep(0)
    assert cluster.heartbeats == 1
    if is_lost:
        for lost in cluster.on_lost:
            lost("a")
    else:
        cluster.met["c"] = None
        for changed in cluster.on_change:
            changed()
    async with asyncio.timeout(5):  # sooner than the next heartbeat after 10 s
        await beats.get()
    assert cluster.heartbeats >= 2
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert not cluster.on_lost
    assert not cluster.on_change


@pytest.mark.parametrize("error", [TIMES_OUT, LOST, UNAVAILABLE], ids=repr)
def test_long_broker_outage_is_logged_once(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    cluster, now = Cluster(a=None, b=None), [0.0]
    member = Member("me", "g", {"t": Subscription("t")})
    mine = Membership(cluster, member, clock=lambda: now[0])  # type: ignore[arg-type]
    asyncio.run(mine.heartbeat())

    def logged_at(seconds: float, met: Exception | None) -> list[str]:
        now[0], cluster.met["b"] = seconds, met
        caplog.clear()
        mine.is_greeting_all = True
        asyncio.run(mine.heartbeat())
        return [record.getMessage() for record in caplog.records if record.name == "raymq.consumer"]

    assert logged_at(1.0, error) == logged_at(4.0, error) == []
    assert logged_at(6.5, error) == [f"group g waits for a broker that does not answer: {error}"]
    assert logged_at(60.0, error) == []
    assert logged_at(63.0, None) == ["group g continues: its brokers answer again after 62 s"]
    assert logged_at(70.0, error) == logged_at(71.0, None) == []


def test_missing_broker_registration_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """No heartbeat can fail without a known address, so this case is logged separately."""
    now = [0.0]
    member = Member("me", "g", {"t": Subscription("t")})
    mine = Membership(NameServersAway(), member, clock=lambda: now[0])  # type: ignore[arg-type]
    for now[0] in (0.0, 4.0, 6.0, 60.0):
        asyncio.run(mine.heartbeat())
    logged = [record.getMessage() for record in caplog.records if record.name == "raymq.consumer"]
    assert len(logged) == 1
    assert "no broker of its topics is registered" in logged[0]


def test_heartbeat_is_due_soon_after_brokers_were_left() -> None:
    """Reading the member list has left brokers between two heartbeats."""
    asyncio.run(find_topic())


async def find_topic() -> None:
    cluster = MissingTopic(a=None, b=None)
    mine = membership(cluster)
    await mine.heartbeat()
    assert cluster.heartbeats == 2, "any broker may get the topic"
    cluster.is_made = True
    mine.topics_listed(frozenset({"t"}))
    assert await mine.members() == []
    assert "b" in cluster.left, "it has not got the topic"
    assert mine._seconds_until_due() == RETRY_SECONDS
    await mine.heartbeat()
    assert mine._seconds_until_due() == HEARTBEAT_SECONDS


def test_found_topic_is_sent_to_its_broker_at_once() -> None:
    """The heartbeat is sent long before the next one is due."""

    async def find() -> None:
        cluster = MissingTopic(a=None, b=None)
        cluster.before = TopicNotFound("t")
        mine = membership(cluster)
        await mine.heartbeat()
        await mine.heartbeat()
        assert cluster.heartbeats == 2, "one for each broker"
        cluster.is_made = True
        mine.topics_listed(frozenset({"t"}))
        await mine.heartbeat()
        assert cluster.heartbeats == 3, "one more for the broker that has the topic"

    asyncio.run(find())


def test_topic_found_during_a_route_read_raises_no_key_error() -> None:
    """A poll finds the missing topic while routes are read."""

    class FoundMeanwhile(MissingTopic):
        async def get_all(self, topics: Iterable[str], *, fresh: bool = False) -> dict[str, Any]:
            answers = await super().get_all(topics, fresh=fresh)
            if not answers:
                mine.topics_listed(frozenset({"t"}))
            return answers

    cluster = FoundMeanwhile(a=None)
    cluster.before = TopicNotFound("t")
    mine = membership(cluster)
    assert isinstance(asyncio.run(mine.routes(["t"]))["t"], TopicNotFound)
    cluster.is_made = True
    assert isinstance(asyncio.run(mine.routes(["t"]))["t"], TopicNotFound)
    assert isinstance(asyncio.run(mine.routes(["t"]))["t"], TopicRoute)
