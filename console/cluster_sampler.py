"""Sample the cluster every five seconds, with a bounded number of requests.

Pages that show many topics or groups take their figures from here instead of asking the brokers for each of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from raymq.actors.naming import DLQ_PREFIX, dlq_topic
from raymq.client import Admin, BrokerUnavailable, RayMQError
from raymq.client.results import ClusterInfo, GroupProgress
from raymq.console.figure_history import EVERY_SECONDS, CounterRate, FigureHistory, SampleRotation

_log = logging.getLogger(__name__)

#: Topics and groups per sample; those beyond it are sampled in turn.
_TOPICS_PER_SAMPLE: Final = 100
_GROUPS_PER_SAMPLE: Final = 50
_AT_ONCE: Final = 16
#: A longer sample is given up, so that one broker that hangs does not stop the others' figures.
_SAMPLE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """What the last sample of a topic found. None: not known.

    Attributes:
        queues: the number of queues on all brokers.
        messages: stored and not expired, over all queues.
        last_store_timestamp: 0.0 if it has no message.
        rate_in: messages per second since the sample before.
        sampled_at: seconds since 1970.
    """

    queues: int
    messages: int
    last_store_timestamp: float
    rate_in: float | None
    sampled_at: float


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """What the last sample of a group found. None: not known.

    Attributes:
        lag: messages after its committed offsets; without topics that no member subscribes to any more.
        lag_partly_unknown: the lag of some queue is not known, so the sum is a lower bound.
        is_complete: every broker has told of its queues.
        oldest_age: seconds since the oldest message was stored that the group has not finished.
        has_members: whether a member is connected.
        owners: the members that fetch from queues.
        rate_out: messages per second that it committed since the sample before.
        dead_letters: the entries of its dead-letter queue, with those that were redriven or deleted; 0 if it has none.
    """

    lag: int | None
    lag_partly_unknown: bool
    is_complete: bool
    in_flight: int | None
    ready: int | None
    oldest_age: float | None
    has_members: bool
    owners: list[str]
    rate_out: float | None
    dead_letters: int | None
    sampled_at: float


@dataclass(slots=True)
class ClusterSample:
    """The newest figures.

    Attributes:
        error: why the last sample failed; None: it did not.
        missing: the broker groups whose master did not answer.
        lag: the sum over the groups whose lag is known; with `lag_partly_unknown` it is a lower bound.
    """

    at: float | None = None
    cluster: ClusterInfo | None = None
    error: str | None = None
    missing: list[str] = field(default_factory=list)
    lag: int | None = None
    lag_partly_unknown: bool = False
    topic_names: list[str] = field(default_factory=list)
    group_names: list[str] = field(default_factory=list)
    topics: dict[str, TopicFigures] = field(default_factory=dict)
    groups: dict[str, GroupFigures] = field(default_factory=dict)


class ClusterSampler:
    """Samples the cluster through an `Admin`, and keeps the figures of the last hour.

    `sample` takes one sample; `run` takes one every five seconds until it is cancelled.
    """

    def __init__(self, admin: Admin, clock: Callable[[], float] = time.time) -> None:
        self._admin = admin
        self._clock = clock
        self._topics_turn = SampleRotation(_TOPICS_PER_SAMPLE)
        self._groups_turn = SampleRotation(_GROUPS_PER_SAMPLE)
        self._rates: dict[tuple[str, str], CounterRate] = {}
        self._sampled = asyncio.Event()
        #: The dead-letter topics that the last sample found.
        self._dead_letter_topics: set[str] = set()
        self.newest = ClusterSample()
        self.history = FigureHistory()

    async def run(self) -> None:
        """Take samples until the task is cancelled."""
        while True:
            begun = time.monotonic()
            await self.sample()
            await asyncio.sleep(max(0.5, EVERY_SECONDS - (time.monotonic() - begun)))

    async def wait_for_next(self) -> ClusterSample:
        """Return the next sample as soon as it is taken."""
        await self._sampled.wait()
        return self.newest

    async def sample(self) -> None:
        """Take one sample; an error of the cluster is kept in `newest.error`."""
        newest = self.newest
        newest.at = self._clock()
        try:
            async with asyncio.timeout(_SAMPLE_SECONDS):
                await self._sample_cluster(newest)
                await self._sample_topics(newest)
                await self._sample_groups(newest)
            newest.error = None
        except RayMQError as error:  # before TimeoutError, which some of them are, too
            newest.error = str(error)
        except TimeoutError:
            newest.error = f"a sample took longer than {_SAMPLE_SECONDS:.0f} s; some figures are old"
        except Exception as error:  # noqa: BLE001 - the console goes on with the figures that it has
            _log.exception("a sample of the cluster failed")
            newest.error = repr(error)
        self._add_totals(newest)
        self.history.drop_old(newest.at)
        self.wake()

    def wake(self) -> None:
        """Let `wait_for_next` return, also without a new sample."""
        self._sampled.set()
        self._sampled.clear()

    async def _sample_cluster(self, newest: ClusterSample) -> None:
        try:
            newest.cluster = await self._admin.acluster_info()
        except BaseException:
            newest.cluster = None  # If no name server answers, nothing is known.
            raise
        brokers = newest.cluster.brokers
        served = {each.name for each in brokers if each.role == "master" and each.state != "unreachable"}
        newest.missing = sorted({each.name for each in brokers if each.state == "unreachable"} - served)

    async def _sample_topics(self, newest: ClusterSample) -> None:
        names = await self._admin.atopics(system=True)
        self._dead_letter_topics = {name for name in names if name.startswith(DLQ_PREFIX)}
        own = await self._admin.atopics()
        newest.topic_names = own
        newest.topics = {name: figures for name, figures in newest.topics.items() if name in set(own)}
        await _each(self._topics_turn.next(own), self._sample_topic, self._keep_topic)

    async def _sample_topic(self, topic: str) -> None:
        stats = await self._admin.atopic_stats(topic, skip_silent=True)
        at = self._clock()
        rate = self._rate("topic", topic).read(at, {queue: each.max_offset for queue, each in stats.items()})
        self.newest.topics[topic] = TopicFigures(
            queues=len(stats),
            messages=sum(queue.max_offset - queue.min_offset for queue in stats.values()),
            last_store_timestamp=max((queue.last_store_timestamp for queue in stats.values()), default=0.0),
            rate_in=rate,
            sampled_at=at,
        )
        self.history.add(("rate in", topic), at, rate)

    def _keep_topic(self, topic: str) -> None:
        """Keep what was known of a topic that does not answer, without its rate."""
        known = self.newest.topics.get(topic)
        if known is not None:
            self.newest.topics[topic] = replace(known, rate_in=None)

    async def _sample_groups(self, newest: ClusterSample) -> None:
        with contextlib.suppress(BrokerUnavailable):  # The names of the sample before are as good.
            newest.group_names = await self._admin.agroups()
        known = set(newest.group_names)
        newest.groups = {name: figures for name, figures in newest.groups.items() if name in known}
        await _each(self._groups_turn.next(newest.group_names), self._sample_group, self._keep_group)

    async def _sample_group(self, group: str) -> None:
        progress = await self._admin.agroup_progress(group)
        at = self._clock()
        committed = {queue: end for queue, each in progress.items() if (end := each.committed_offset) is not None}
        dead_letters: int | None = 0
        if dlq_topic(group) in self._dead_letter_topics:
            stats = await self._admin.atopic_stats(dlq_topic(group), skip_silent=True)
            dead_letters = sum(queue.max_offset - queue.min_offset for queue in stats.values())
        figures = group_figures(progress, self._rate("group", group).read(at, committed), dead_letters, at)
        self.newest.groups[group] = figures
        lag = figures.lag if figures.is_complete else None  # a gap, not a step down
        for name, value in (("lag", lag), ("age", figures.oldest_age), ("rate out", figures.rate_out)):
            self.history.add((name, group), at, value)

    def _keep_group(self, group: str) -> None:
        """Keep what was known of a group that does not answer, without what moves."""
        known = self.newest.groups.get(group)
        if known is not None:
            self.newest.groups[group] = replace(
                known,
                lag=None,
                lag_partly_unknown=False,
                is_complete=False,
                in_flight=None,
                ready=None,
                oldest_age=None,
                rate_out=None,
            )

    def _rate(self, kind: str, name: str) -> CounterRate:
        return self._rates.setdefault((kind, name), CounterRate())

    def _add_totals(self, newest: ClusterSample) -> None:
        """Add the totals and the disks to the history, unknown where the sample failed."""
        assert newest.at is not None
        failed = newest.error is not None
        topics, groups = newest.topics.values(), newest.groups.values()
        newest.lag = None if failed else _whole(sum_known(each.lag for each in groups))
        newest.lag_partly_unknown = newest.lag is not None and any(
            each.lag is None or each.lag_partly_unknown for each in groups
        )
        totals = {
            "rate in": sum_known(each.rate_in for each in topics),
            "rate out": sum_known(each.rate_out for each in groups),
            "lag": newest.lag if all(each.is_complete for each in groups) else None,
            "age": max((each.oldest_age for each in groups if each.oldest_age is not None), default=None),
        }
        for name, value in totals.items():
            self.history.add((name,), newest.at, None if failed else value)
        for broker in newest.cluster.brokers if newest.cluster is not None else ():
            is_known = broker.state != "unreachable"
            name = f"{broker.name}.{broker.replica}" if broker.replica else broker.name
            self.history.add(("disk", name), newest.at, broker.disk_ratio if is_known else None)
        known = {("topic", name) for name in newest.topic_names} | {("group", name) for name in newest.group_names}
        self._rates = {name: rate for name, rate in self._rates.items() if name in known}


def group_figures(progress: GroupProgress, rate_out: float | None, dead_letters: int | None, at: float) -> GroupFigures:
    """Return the totals of a group's progress.

    A value is None if it is unknown for all queues, the number in flight also if it is for one with a lag. Queues of
    topics that no member subscribes to are left out.
    """
    counted = [queue for queue in progress.values() if queue.subscribed is not False]
    lag = sum_known(queue.lag for queue in counted)
    is_hidden = any(queue.lag and queue.in_flight is None for queue in counted)
    return GroupFigures(
        lag=None if lag is None else int(lag),
        lag_partly_unknown=lag is not None and any(queue.lag is None and queue.max_offset != 0 for queue in counted),
        is_complete=all(queue.max_offset is not None for queue in counted),
        in_flight=None if is_hidden else _whole(sum_known(queue.in_flight for queue in counted)),
        ready=_whole(sum_known(queue.ready for queue in counted)),
        oldest_age=max((age for queue in counted if (age := queue.oldest_unfinished_age) is not None), default=None),
        has_members=any(queue.subscribed is not None for queue in progress.values()),
        owners=sorted({queue.owner for queue in progress.values() if queue.owner is not None}),
        rate_out=rate_out,
        dead_letters=dead_letters,
        sampled_at=at,
    )


def sum_known(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values; None if none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


async def _each(names: list[str], sample: Callable[[str], Awaitable[None]], fail: Callable[[str], None]) -> None:
    """Sample each name, some at a time; call `fail` with one that cannot be sampled."""
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(name: str) -> None:
        async with turn:
            try:
                await sample(name)
            except RayMQError:
                fail(name)

    await asyncio.gather(*(one(name) for name in names))
