"""Test the figures of successive samples, with a broker that is away for a while."""

from __future__ import annotations

import asyncio

from raymq.actors.protocol import BrokerInfo
from raymq.client import BrokerUnavailable, MessageQueue
from raymq.client.results import ClusterInfo, GroupProgress, QueueProgress, QueueStats, SchedulerInfo
from raymq.console.cluster_sampler import ClusterSampler


class Cluster:
    """What an admin client finds: one topic and one group on broker-a and broker-b."""

    away = False
    fails = False
    sent = 0
    brokers: tuple[BrokerInfo, ...] = ()

    def queues(self) -> list[MessageQueue]:
        return [MessageQueue("t", broker, 0) for broker in ("broker-a", "broker-b")]

    def check(self) -> None:
        if self.fails:
            raise BrokerUnavailable("broker-a", "it does not answer")

    async def acluster_info(self) -> ClusterInfo:
        return ClusterInfo(list(self.brokers), [], SchedulerInfo(None, None), [])

    async def atopics(self, *, system: bool = False) -> list[str]:
        return ["t"]

    async def atopic_stats(self, topic: str, *, skip_silent: bool) -> dict[MessageQueue, QueueStats]:
        self.check()
        return {queue: QueueStats(0, 1_000 + self.sent, 1.0) for queue in self.queues()[: 1 if self.away else 2]}

    async def agroups(self) -> list[str]:
        return ["g"]

    async def agroup_progress(self, group: str) -> GroupProgress:
        self.check()
        a, b = self.queues()
        found = QueueProgress(self.sent, 1_000 + self.sent, 1_000, "me", True, 0, 0, 1.0)
        return GroupProgress({a: found, b: QueueProgress(None, None, None, None) if self.away else found})


def test_broker_that_was_away_is_a_gap_in_the_lag_and_no_step_in_the_rate() -> None:
    cluster, now = Cluster(), 0.0
    sampler = ClusterSampler(cluster, lambda: now)  # type: ignore[arg-type]
    seen = []
    for away in (False, False, True, False, False):
        now += 5.0
        cluster.away = away
        cluster.sent += 500
        asyncio.run(sampler.sample())
        seen.append((sampler.newest.lag, sampler.newest.lag_partly_unknown))
    assert sampler.newest.error is None
    assert seen == [(2_000, False), (2_000, False), (1_000, True), (2_000, False), (2_000, False)]
    lag = [2_000, 2_000, None, 2_000, 2_000]
    assert [value for _, value in sampler.history.points("lag")] == lag
    assert [value for _, value in sampler.history.points("lag", "g")] == lag
    rates = [None, 200.0, 100.0, 100.0, 200.0]
    for name in ("rate in", "rate out"):
        assert [value for _, value in sampler.history.points(name)] == rates


def test_rates_and_lag_of_what_does_not_answer_are_unknown() -> None:
    cluster, now = Cluster(), 0.0
    sampler = ClusterSampler(cluster, lambda: now)  # type: ignore[arg-type]
    for fails in (False, False, True):
        now += 5.0
        cluster.fails = fails
        cluster.sent += 500
        asyncio.run(sampler.sample())
    topic, group = sampler.newest.topics["t"], sampler.newest.groups["g"]
    assert (topic.messages, topic.rate_in) == (4_000, None)
    assert (group.has_members, group.lag, group.rate_out, group.oldest_age) == (True, None, None, None)
    assert (sampler.newest.lag, sampler.newest.lag_partly_unknown) == (None, False)
    for name in ("rate in", "rate out", "lag", "age"):
        assert [value is None for _, value in sampler.history.points(name)][1:] == [False, True], name


def broker(name: str, replica: int, role: str, state: str) -> BrokerInfo:
    return BrokerInfo(name, replica, role, state, 1, "h:1", 7, "", "", 0.1)


def test_group_with_a_lost_replica_is_reachable() -> None:
    cluster = Cluster()
    cluster.brokers = (
        broker("a", 0, "master", "running"),
        broker("a", 1, "replica", "unreachable"),
        broker("b", 0, "master", "unreachable"),
    )
    sampler = ClusterSampler(cluster, lambda: 5.0)  # type: ignore[arg-type]
    asyncio.run(sampler.sample())
    assert sampler.newest.missing == ["b"]
