"""Routes for clients: asked from any name server, kept for 30 s. Runs on the event loop of its connection pool.

A broker that comes (back) into a route is connected to at once, however long its address has refused before. A route
that has lost a broker is asked for again every 2 s, so that one that was restarted is soon found. What brokers had
that are away is remembered, as far as it was seen here or a name server tells it: "away" is not "no such topic".

A broker that does not answer, or says that it is not its group's master, is doubted: each route that leads to it is
asked for again before it is used. Where another one is master now, the connection to the former one is given up, and
what waits there, such as a fetch that was parked, goes to the new one. A name server that still leads there, or says
that nobody is master, may be cut off from whoever is: the next one is asked next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence

from raymq.actors.errors import (
    NOBODY_ANSWERS,
    BrokerUnavailable,
    RayMQError,
    ServerBusy,
    TopicNotFound,
    TopicUnavailable,
    topic_not_found,
)
from raymq.actors.name_server_silence import NameServerSilence
from raymq.actors.naming import DLQ_PREFIX, retry_topic
from raymq.actors.protocol import AWAY_SECONDS, ClusterView, MessageQueue, TopicRoute
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands import route as route_answers
from raymq.actors.wire.connection import ConnectionPool
from raymq.actors.wire.frame import Command
from raymq.storage.clock import boottime

ROUTE_SECONDS = 30.0
#: A route that nobody renewed, or that misses a broker, is used for this long before somebody is asked again.
_SHORT_SECONDS = 2.0
#: Above so many addresses the brokers' names are learned anew.
_MOST_NAMES = 1024
#: Above so many topics those are forgotten whose route nobody has asked for for so long,
MOST_TOPICS = 1_000
UNUSED_SECONDS = 3_600.0
#: and that is looked at no more often.
_LOOK_SECONDS = 60.0
#: A broker is doubted again after this: the same name server would say the same.
_DOUBT_SECONDS = 0.3
#: What is under way to a former master is given up after this: it may answer yet.
_DROP_SECONDS = 1.0
#: One that has just started, and does not know the cluster yet, is asked again after this pause.
_LEARNING_SECONDS = 0.2
#: A name server that does not answer within this time is passed over for the next one.
_NAME_SERVER_SECONDS = 3.0


class Routes:
    """The route of each topic. A name server's death is invisible: what is cached stays in use until one answers."""

    def __init__(self, pool: ConnectionPool, name_servers: Sequence[str]) -> None:
        self._pool = pool
        self.name_servers = list(name_servers)
        #: By topic: the route, and since when it is young; it is for `ROUTE_SECONDS`.
        self._cached: dict[str, tuple[float, TopicRoute]] = {}
        #: By topic: when each broker was last in its route.
        self._seen_at: dict[str, dict[str, float]] = {}
        #: By topic and broker: the queues that could be written when it was last in the route.
        self._writable: dict[str, dict[str, list[MessageQueue]]] = {}
        #: When it was looked at last which of these topics nobody uses any more.
        self._looked_at = boottime()
        #: By address: the broker that was there when a name server was asked last.
        self._names: dict[str, str] = {}
        #: By address: when the routes that lead there were doubted last.
        self._doubted: dict[str, float] = {}
        pool.on_trouble = self.doubt
        pool.probed = self.name_servers
        #: Called when a route is to be asked for again before it is used, or leads to other brokers than before.
        self.on_change: set[Callable[[], None]] = set()
        #: The addresses of cached routes that a name server did not name when it was asked last.
        self._absent: set[str] = set()
        self._silence = NameServerSilence(boottime)
        self._asking: asyncio.Task[None] | None = None
        #: The place in the list of the one that answered last: clients stick to it as long as it answers.
        self._preferred = 0

    async def get(self, topic: str, *, fresh: bool = False, timeout: float = _NAME_SERVER_SECONDS) -> TopicRoute:
        """The route of `topic`.

        Args:
            fresh: ask even if the cached one is young, as after a failure; an old one still serves if nobody answers
                (at once while they hang, for then it is asked in the background whether one is back), or its brokers
                are away, and for `ROUTE_SECONDS` where a name server does not know the topic.

        Raises:
            TopicNotFound: a name server says that nobody has it.
            TopicUnavailable: it says that the brokers that have it are away, or does not know brokers that had it
                lately, and nothing is cached.
            BrokerUnavailable: no name server answers, and nothing is cached.
            ProtocolError: what it answers is no route, and nothing is cached.
        """
        known = None if fresh else self.known(topic)
        if known is not None:
            return known
        now = boottime()
        cached = self._cached.get(topic)
        if cached is not None and self._silence.is_on:
            self._ask_behind()
            self._cached[topic] = (max(cached[0], now - ROUTE_SECONDS + _SHORT_SECONDS), cached[1])
            return cached[1]
        fields = {"topic": topic, "acceptStandardJsonOnly": "true", "raymqLimits": "true", "raymqAway": "true"}
        try:
            command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
            answer = await self.ask(command, timeout, patient=cached is None)
            route = route_answers.read_route(topic, answer.body)
            if route.away and not route.addresses:
                self._absent.update(() if cached is None else cached[1].addresses.values())
                self._ask_another_next()
                raise TopicUnavailable(topic, [each.data.broker for each in route.away])
        except TopicNotFound:
            self._absent.update(() if cached is None else cached[1].addresses.values())
            if cached is not None and fresh and self._was_there(topic, now):  # one that just started may not know it
                return cached[1]
            self._cached.pop(topic, None)
            self._remember(topic, now, {}, {})  # it may be one that just started, and has not heard of all brokers
            await self._check_all_there(topic, timeout)
            raise topic_not_found(topic) from None  # the name server says it in RocketMQ's words
        except RayMQError:
            if cached is not None:
                self._cached[topic] = (max(cached[0], now - ROUTE_SECONDS + _SHORT_SECONDS), cached[1])
                return cached[1]
            raise
        before = {} if cached is None else cached[1].addresses
        if any(self._is_doubtful(address, now) for address in route.addresses.values()):
            self._ask_another_next()
        for broker, address in route.addresses.items():
            self._names[address] = broker
            if before.get(broker) != address or address in self._absent:
                self._absent.discard(address)
                self._pool.retry_now(address)
                if broker in before and before[broker] != address:
                    asyncio.get_running_loop().call_later(_DROP_SECONDS, self._drop, before[broker])
        seconds = _SHORT_SECONDS if self._misses(route, now) else ROUTE_SECONDS
        self._cached[topic] = (now - ROUTE_SECONDS + seconds, route)
        if before != route.addresses:
            self._changed()
        self._forget_unused(now)
        return route

    def _is_doubtful(self, address: str, now: float) -> bool:
        return now - self._doubted.get(address, -_SHORT_SECONDS) < _SHORT_SECONDS

    def _ask_another_next(self) -> None:
        self._preferred = (self._preferred + 1) % len(self.name_servers)

    async def _check_all_there(self, topic: str, timeout: float) -> None:
        """TopicUnavailable if a broker that had the topic lately is away: a name server that has just started cannot
        know what those have, and takes it for no topic.
        """
        had_it = self._seen_at.get(topic)
        if not had_it:
            return
        try:
            living = (await self.cluster(timeout)).masters
        except RayMQError:
            return
        if away := sorted(had_it.keys() - living.keys()):
            raise TopicUnavailable(topic, away)

    async def readable(self, topic: str, *, fresh: bool = False) -> TopicRoute:
        """Return the route of a topic that is to be read; raises as `get`.

        The dead letters of a group that exists and has none yet are a topic without queues: nothing was put there.
        """
        try:
            return await self.get(topic, fresh=fresh)
        except TopicNotFound as error:
            if not topic.startswith(DLQ_PREFIX):
                raise
            try:  # each group has this topic from its beginning
                await self.get(retry_topic(topic.removeprefix(DLQ_PREFIX)))
            except TopicNotFound:
                raise error from None
            return TopicRoute(topic, ())

    async def get_all(self, topics: Iterable[str], *, fresh: bool = False) -> dict[str, TopicRoute | RayMQError]:
        """Of each topic the route by which it is read, or why there is none; asked together, all at the same time."""

        async def one(topic: str) -> TopicRoute | RayMQError:
            try:
                return await self.readable(topic, fresh=fresh)
            except RayMQError as error:
                return error

        names = list(topics)
        return dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))

    def _ask_behind(self) -> None:
        """See whether a name server answers again, where it is time; nobody waits for it."""
        loop, asking = asyncio.get_running_loop(), self._asking
        # A task of another loop is that of the parent of this process.
        if self._silence.is_to_be_asked and (asking is None or asking.done() or asking.get_loop() is not loop):
            self._asking = loop.create_task(self._see())

    async def _see(self) -> None:
        with contextlib.suppress(RayMQError):
            await self.cluster()

    def _was_there(self, topic: str, now: float) -> bool:
        """Whether a name server has told a route of `topic` lately."""
        return any(now - at < ROUTE_SECONDS for at in self._seen_at.get(topic, {}).values())

    def _misses(self, route: TopicRoute, now: float) -> bool:
        """Whether it lacks a broker that it had lately."""
        away = {each.data.broker: now - each.seconds for each in route.away}
        known = self._seen_at.get(route.topic, {})
        seen_at = {broker: max(at, known.get(broker, at)) for broker, at in away.items()}
        writable: dict[str, list[MessageQueue]] = {broker: [] for broker in (*away, *route.addresses)}
        for queue in (*route.writable(), *route.writable_away()):
            writable[queue.broker].append(queue)
        self._remember(route.topic, now, seen_at | dict.fromkeys(route.addresses, now), writable)
        return not self._seen_at.get(route.topic, {}).keys() <= route.addresses.keys()

    def _remember(
        self, topic: str, now: float, seen_at: dict[str, float], writable: dict[str, list[MessageQueue]]
    ) -> None:
        """Beside what is known already of brokers that may come back."""
        seen_at = self._seen_at.get(topic, {}) | seen_at
        seen_at = {broker: at for broker, at in seen_at.items() if now - at < AWAY_SECONDS}
        writable = self._writable.get(topic, {}) | writable
        if not seen_at:
            self.forget(topic)
            return
        self._seen_at[topic] = seen_at
        self._writable[topic] = {broker: queues for broker, queues in writable.items() if broker in seen_at}

    def _forget_unused(self, now: float) -> None:
        """A program may send to another topic for each of its jobs."""
        if len(self._seen_at) <= MOST_TOPICS or now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        for topic, seen_at in list(self._seen_at.items()):
            used_at = self._cached[topic][0] if topic in self._cached else max(seen_at.values())
            if now - used_at > UNUSED_SECONDS:
                self.forget(topic)

    def knows(self, topic: str) -> bool:
        """Whether a route of `topic` is cached, be it young or old. Any thread."""
        return topic in self._cached

    def keyed(self, route: TopicRoute) -> list[MessageQueue]:
        """What sharding keys choose from: the queues that may be written, sorted. Any thread.

        Those of a broker that has left the routes lately belong to them: its keys wait for it rather than go elsewhere,
        where they would overtake what lies on it. After `AWAY_SECONDS` it is not expected back.
        """
        queues, away = route.writable(), self.away(route)
        writable = self._writable.get(route.topic, {})
        return sorted([*queues, *(queue for broker in away for queue in writable.get(broker, ()))]) if away else queues

    def away(self, route: TopicRoute) -> list[str]:
        """The names of the brokers that have left the route, and may come back, sorted. Any thread."""
        now, seen_at = boottime(), self._seen_at.get(route.topic, {})
        return sorted(
            broker for broker, at in seen_at.items() if broker not in route.addresses and now - at < AWAY_SECONDS
        )

    def known(self, topic: str) -> TopicRoute | None:
        """The route of `topic` if it is cached and young. Any thread."""
        cached = self._cached.get(topic)
        return cached[1] if cached is not None and boottime() - cached[0] < ROUTE_SECONDS else None

    async def cluster(self, timeout: float = _NAME_SERVER_SECONDS) -> ClusterView:
        """All brokers that a name server knows."""
        view = route_answers.read_view((await self.ask(Command(RequestCode.GET_BROKER_CLUSTER_INFO), timeout)).body)
        if len(self._names) > _MOST_NAMES:
            self._names = {}
        self._names.update((address, broker) for broker, address in view.masters.items())
        return view

    def name_at(self, address: str) -> str | None:
        """The name of the broker at `address`, as far as that need not be asked for. Any thread."""
        return self._names.get(address)

    async def topics(self, timeout: float = _NAME_SERVER_SECONDS) -> list[str]:
        """All topics that a name server knows."""
        answer = await self.ask(Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER), timeout)
        return route_answers.read_topics(answer.body)

    async def broker_at(self, address: str, timeout: float = _NAME_SERVER_SECONDS) -> str:
        """The name of the broker that listens at `address`; BrokerUnavailable if no name server knows one."""
        for _, route in self._cached.values():
            for broker, known in route.addresses.items():
                if known == address:
                    return broker
        for broker, known in (await self.cluster(timeout)).masters.items():
            if known == address:
                return broker
        raise BrokerUnavailable(address, "no name server knows a broker there")

    def doubt(self, address: str) -> None:
        """Nobody answers there as a master should: ask for the routes that lead there before they are used again."""
        now = boottime()
        if now - self._doubted.get(address, -_DOUBT_SECONDS) < _DOUBT_SECONDS or address in self.name_servers:
            return
        if len(self._doubted) > _MOST_NAMES:
            self._doubted = {}
        self._doubted[address] = now
        for topic, (_, route) in self._cached.copy().items():
            if address in route.addresses.values():
                self.outdate(topic)

    def _drop(self, address: str) -> None:
        """Give up what waits at an address to which no route leads any more."""
        if not any(address in route.addresses.values() for _, route in self._cached.values()):
            self._pool.drop(address)

    def outdate(self, topic: str) -> None:
        """Ask for the route before it is used again; it serves on where nobody answers."""
        cached = self._cached.get(topic)
        if cached is not None:
            self._cached[topic] = (boottime() - ROUTE_SECONDS, cached[1])
            self._changed()

    def seconds_until_old(self, topics: Iterable[str]) -> float:
        """Return for how long all these routes are young; 0 where one is not known."""
        now = boottime()
        since = [self._cached[topic][0] if topic in self._cached else -ROUTE_SECONDS for topic in topics]
        return max(0.0, min(since, default=now) + ROUTE_SECONDS - now)

    def _changed(self) -> None:
        for call in list(self.on_change):
            call()

    def forget(self, topic: str) -> None:
        """Drop all that is known of a topic, for it was deleted."""
        self._cached.pop(topic, None)
        self._seen_at.pop(topic, None)
        self._writable.pop(topic, None)

    async def ask(self, command: Command, timeout: float = _NAME_SERVER_SECONDS, *, patient: bool = True) -> Command:
        """Send a request to the name server that answered last, or the first behind it that answers.

        One that has just started is passed over, too, and asked again until it knows the cluster.

        Args:
            patient: where all refuse, or do not know the cluster yet, wait for one that may answer within `timeout`.

        Raises:
            BrokerUnavailable: none answers within `timeout` seconds.
            TopicUnavailable: one does, and says that those who know are away.
            ServerBusy: one does, but does not know the cluster yet.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            try:
                return await self._ask_once(command, deadline - asyncio.get_running_loop().time(), patient=patient)
            except ServerBusy:  # it answers, at least
                self._silence.answered()
                if not patient or asyncio.get_running_loop().time() + _LEARNING_SECONDS >= deadline:
                    raise
                await asyncio.sleep(_LEARNING_SECONDS)

    async def _ask_once(self, command: Command, timeout: float, *, patient: bool) -> Command:
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = began + timeout
        reasons: list[str] = []
        busy: ServerBusy | None = None
        first, count = self._preferred, len(self.name_servers)
        for turn in range(count):
            self._preferred = (first + turn) % count
            share = (deadline - loop.time()) / (count - turn)
            last = turn == count - 1
            try:
                answer = await self._pool.request(
                    self.name_servers[self._preferred], command, share, patient=patient and last
                )
            except ServerBusy as error:
                busy = error
            except TopicUnavailable:
                self._silence.answered()
                raise
            except BrokerUnavailable as error:
                reasons.append(str(error))
            except RayMQError:
                self._silence.answered()
                raise
            else:
                self._silence.answered()
                return answer
        if busy is not None:
            raise busy
        self._silence.unanswered(loop.time() - began, timeout)
        raise BrokerUnavailable("name server", "; ".join(reasons), remedy=NOBODY_ANSWERS)
