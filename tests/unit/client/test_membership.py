"""Who could be greeted at a start, and what that makes of the start and of the queues."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raymq.actors.errors import BrokerUnavailable, ConnectionLost, ServerBusy, SubscriptionMismatch, Timeout
from raymq.actors.filter.subscription import Subscription
from raymq.actors.protocol import TopicRoute
from raymq.actors.wire.commands.group import Member
from raymq.client.members.membership import Membership

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

    async def get(self, name: str, timeout: float | None = None) -> Any:
        if timeout is None:
            return TopicRoute(name, (), {f"broker-{address}": address for address in self.met})
        return Peer(self, name)


class Peer:
    def __init__(self, cluster: Cluster, address: str) -> None:
        self.cluster, self.address = cluster, address

    async def request(self, *_: Any) -> None:
        error = self.cluster.met[self.address]
        if error is not None:
            raise error


def membership(cluster: Cluster) -> Membership:
    return Membership(cluster, Member("me", "g", {"t": Subscription("t")}), clock=lambda: 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [HANGS, GONE, AWAY], ids=repr)
def test_one_broker_that_is_greeted_suffices_for_a_start(error: Exception) -> None:
    cluster = Cluster(a=None, b=error)
    mine = membership(cluster)
    asyncio.run(mine.heartbeat(strict=True))
    assert [mine.is_unmet(address) for address in "abc"] == [False, True, False]
    cluster.met["b"] = None
    asyncio.run(mine.heartbeat())
    assert not mine.is_unmet("b"), "the next heartbeat has greeted it"
    cluster.met["b"] = error
    asyncio.run(mine.heartbeat())
    assert not mine.is_unmet("b"), "it knows the member"


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
    assert mine.is_unmet("b")
