"""Who could be greeted at a start, and what that makes of the start and of the queues."""

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

HANGS = Timeout("b", "no answer within 3 s")
GONE = ConnectionLost("b", "it is closed")
AWAY = BrokerUnavailable("b")
MISMATCH = SubscriptionMismatch("another subscription")
BUSY = ServerBusy("as many memberships as there may be")


class Cluster:
    """Brokers by address, each with what a heartbeat meets there; it is all of a connection that a membership uses."""

    def __init__(self, **met: Exception | None) -> None:
        self.met = met
        self.routes = self.pool = self
        #: Who was told that the member leaves.
        self.left: list[str] = []
        self.on_lost: set[Callable[[str], None]] = set()
        self.on_change: set[Callable[[], None]] = set()
        #: How many heartbeats were sent.
        self.heartbeats = 0

    async def get_all(self, topics: Iterable[str], *, fresh: bool = False) -> dict[str, TopicRoute]:
        addresses = {f"broker-{address}": address for address in self.met}
        return {topic: TopicRoute(topic, (), addresses) for topic in topics}

    def seconds_until_stale(self, _: Iterable[str]) -> float:
        return 30.0

    async def get(self, address: str, _: float) -> Peer:
        if self.met[address] is AWAY:
            raise AWAY
        return Peer(self, address)

    async def request(self, address: str, *_: Any) -> None:
        self.left.append(address)


class Unmade(Cluster):
    """Have the topic nowhere before it is made; then `a` alone has it."""

    is_made = False
    #: What a name server says before; this is what it says of dead letters, where the group has none yet.
    before: TopicRoute | TopicNotFound = TopicRoute("t", ())

    def __init__(self, **met: Exception | None) -> None:
        super().__init__(**met)
        self.peers = {address: Peer(self, address) for address in met}

    @property
    def missing_topics(self) -> Unmade:
        return self

    async def get(self, address: str, _: float) -> Peer:
        return self.peers[address]  # connections last

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
    """Know no route, as where no name server answers."""

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


def test_who_leaves_tells_brokers_too_that_have_not_answered_a_greeting() -> None:
    """They had the member of a start that was given up for as long as its connection lived, with its share of the
    queues, which nobody consumed.
    """
    cluster = Cluster(a=None, b=HANGS, c=AWAY, d=MISMATCH)
    mine = membership(cluster)
    asyncio.run(mine.heartbeat())
    asyncio.run(mine.leave())
    assert cluster.left == ["a", "b", "d"]


@pytest.mark.parametrize("error", [HANGS, GONE, AWAY], ids=repr)
def test_one_broker_that_is_greeted_suffices_for_a_start(error: Exception) -> None:
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


def test_a_start_fails_where_no_broker_answers() -> None:
    with pytest.raises(Timeout):
        asyncio.run(membership(Cluster(a=HANGS, b=AWAY)).heartbeat(strict=True))


@pytest.mark.parametrize("refusal", [MISMATCH, BUSY], ids=repr)
@pytest.mark.parametrize("other", [None, HANGS], ids=repr)
def test_a_start_that_a_broker_refuses_fails(refusal: Exception, other: Exception | None) -> None:
    with pytest.raises(type(refusal)):
        asyncio.run(membership(Cluster(a=other, b=refusal)).heartbeat(strict=True))


def test_a_refusal_by_a_broker_that_was_away_leaves_its_queues_alone() -> None:
    cluster = Cluster(a=None, b=HANGS)
    mine = membership(cluster)
    asyncio.run(mine.heartbeat(strict=True))
    cluster.met["b"] = MISMATCH
    asyncio.run(mine.heartbeat())
    assert mine.is_unreached("b")


def test_a_member_that_is_well_sleeps_until_the_next_heartbeat() -> None:
    cluster = Cluster(a=None, b=HANGS)
    mine = membership(cluster)
    asyncio.run(mine.heartbeat())
    assert mine._seconds_until_due() == 1.0, "one broker did not answer"
    cluster.met["b"] = None
    asyncio.run(mine.heartbeat())
    assert mine._seconds_until_due() == HEARTBEAT_SECONDS


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_lost_connection_or_another_route_wakes_a_member(is_lost: bool) -> None:
    asyncio.run(wake(is_lost))


async def wake(is_lost: bool) -> None:
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
    async with asyncio.timeout(5):  # not after the 10 s of a heartbeat
        await beats.get()
    assert cluster.heartbeats >= 2
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert not cluster.on_lost
    assert not cluster.on_change


@pytest.mark.parametrize("error", [HANGS, GONE, AWAY], ids=repr)
def test_brokers_that_are_away_for_long_are_logged_once(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
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


def test_no_registered_broker_at_all_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Log it as brokers that are away: where no address is known, no heartbeat fails."""
    now = [0.0]
    member = Member("me", "g", {"t": Subscription("t")})
    mine = Membership(NameServersAway(), member, clock=lambda: now[0])  # type: ignore[arg-type]
    for now[0] in (0.0, 4.0, 6.0, 60.0):
        asyncio.run(mine.heartbeat())
    logged = [record.getMessage() for record in caplog.records if record.name == "raymq.consumer"]
    assert len(logged) == 1
    assert "no broker of its topics is registered" in logged[0]


def test_the_next_heartbeat_is_soon_where_a_broker_has_to_be_greeted_anew() -> None:
    """Go on where a list of the members has let go of brokers between two heartbeats."""
    asyncio.run(find_topic())


async def find_topic() -> None:
    cluster = Unmade(a=None, b=None)
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


def test_brokers_hear_at_once_that_a_topic_is_waited_for_no_more() -> None:
    """Greet anew, long before the next heartbeat is due."""

    async def find() -> None:
        cluster = Unmade(a=None, b=None)
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


def test_topic_found_while_routes_are_read_is_no_key_error() -> None:
    """A poll finds a missing topic between the choice of the topics to ask for and the answer."""

    class FoundMeanwhile(Unmade):
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
