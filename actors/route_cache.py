"""Cache routes from the name servers for 30 s.

The cache runs on the event loop of its connection pool.

A broker that appears (again) in a route is connected to at once, however long its address has refused connections. A
route that has lost a broker is fetched again every 2 s, so that a restarted broker is soon found. The queues of brokers
that have left are remembered, as far as this client saw them or a name server reports them, so that such a topic is not
reported as missing.

A broker that does not answer, or reports that it is not its group's master, is doubted: each route to it is fetched
again before it is used. If another broker is master now, the connection to the former one is dropped, and the requests
that wait on it, such as a parked fetch, go to the new one. A name server whose route still has the former master, or no
master, may be cut off from the current one: the next name server is preferred.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence

from raymq.actors.errors import (
    NO_CLUSTER_HINT,
    BrokerUnavailable,
    RayMQError,
    ServerBusy,
    TopicNotFound,
    TopicUnavailable,
    topic_not_found,
)
from raymq.actors.name_server_health import NameServerHealth
from raymq.actors.naming import DLQ_PREFIX, retry_topic
from raymq.actors.protocol import RECENTLY_LEFT_SECONDS, ClusterView, MessageQueue, TopicRoute
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands import route_answers
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.route_headers import GetClusterInfo
from raymq.storage.clock import boottime

ROUTE_SECONDS = 30.0
#: A route that could not be renewed, or that lacks a broker, is used for this long before it is fetched again.
_SHORT_SECONDS = 2.0
#: With more addresses than this, the names of the brokers are dropped.
_MAX_NAMES = 1024
#: With more topics than this, those whose route was not used for `UNUSED_SECONDS` are dropped.
MAX_TOPICS = 1_000
UNUSED_SECONDS = 3_600.0
#: The shortest time between two searches for unused topics.
_LOOK_SECONDS = 60.0
#: A broker is doubted again only after this, because the name server's answer would be the same before.
_DOUBT_SECONDS = 0.3
#: Requests to a former master are dropped after this, because it may still answer.
_DROP_SECONDS = 1.0
#: The pause before a name server that has just started, and does not know the cluster yet, is asked again.
_LEARNING_SECONDS = 0.2
#: The default time-out of a request, which is shared among the name servers that are tried.
_NAME_SERVER_SECONDS = 3.0


class RouteCache:
    """The routes of topics.

    A route is young for `ROUTE_SECONDS` after it was fetched, and is fetched again when it is used after that. A
    crashed name server goes unnoticed: cached routes stay in use until a name server answers.
    """

    def __init__(self, pool: ConnectionPool, name_servers: Sequence[str]) -> None:
        self._pool = pool
        self.name_servers = list(name_servers)
        #: By topic: the time since which the route is young, which it stays for `ROUTE_SECONDS`, and the route.
        self._cached: dict[str, tuple[float, TopicRoute]] = {}
        #: By topic: when each broker was last in its route.
        self._seen_at: dict[str, dict[str, float]] = {}
        #: By topic and broker: the queues that could be written when it was last in the route.
        self._writable: dict[str, dict[str, list[MessageQueue]]] = {}
        #: When unused topics were last searched for.
        self._looked_at = boottime()
        #: By address: the broker that a name server last reported there.
        self._names: dict[str, str] = {}
        #: By address: when the broker there was last doubted.
        self._doubted: dict[str, float] = {}
        pool.on_unavailable = self.doubt
        pool.probe_addresses = self.name_servers
        #: Called when a route has to be fetched again before it is used, or has other brokers than before.
        self.on_change: set[Callable[[], None]] = set()
        #: The addresses of cached routes that are missing in a name server's last answer.
        self._absent: set[str] = set()
        self._silence = NameServerHealth(boottime)
        self._asking: asyncio.Task[None] | None = None
        #: The index of the name server that answered last, which is used as long as it answers.
        self._preferred = 0

    async def get(self, topic: str, *, fresh: bool = False, timeout: float = _NAME_SERVER_SECONDS) -> TopicRoute:
        """Return the route of `topic`.

        Args:
            fresh: fetch the route even if the cached one is young, as after a failure. The cached route is still
                returned if no name server answers (at once while they hang; then a background task checks whether one
                is back), if its brokers are away, or for `ROUTE_SECONDS` if a name server does not know the topic.

        Raises:
            TopicNotFound: a name server reports that no broker has the topic.
            TopicUnavailable: the name server reports that the topic's brokers are away, or does not know brokers that
                had it lately, and no route is cached.
            BrokerUnavailable: no name server answers, and no route is cached.
            ProtocolError: the answer is not a route, and no route is cached.
        """
        known = None if fresh else self.known(topic)
        if known is not None:
            return known
        now = boottime()
        cached = self._cached.get(topic)
        if cached is not None and self._silence.is_hanging:
            self._refresh_in_background()
            self._cached[topic] = (max(cached[0], now - ROUTE_SECONDS + _SHORT_SECONDS), cached[1])
            return cached[1]
        fields = {"topic": topic, "acceptStandardJsonOnly": "true", "raymqLimits": "true", "raymqAway": "true"}
        try:
            command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
            answer = await self.ask(command, timeout, patient=cached is None)
            route = route_answers.read_route(topic, answer.body)
            if route.away and not route.addresses:
                self._absent.update(() if cached is None else cached[1].addresses.values())
                self._use_next_server()
                raise TopicUnavailable(topic, [each.data.broker for each in route.away])
        except TopicNotFound:
            self._absent.update(() if cached is None else cached[1].addresses.values())
            if (
                cached is not None and fresh and self._was_there(topic, now)
            ):  # a name server that has just started may not know it
                return cached[1]
            self._cached.pop(topic, None)
            self._remember(topic, now, {}, {})  # a name server that has just started may not know all brokers yet
            await self._check_all_there(topic, timeout)
            raise topic_not_found(topic) from None  # the name server's error has RocketMQ's text
        except RayMQError:
            if cached is not None:
                self._cached[topic] = (max(cached[0], now - ROUTE_SECONDS + _SHORT_SECONDS), cached[1])
                return cached[1]
            raise
        before = {} if cached is None else cached[1].addresses
        if any(self._is_doubtful(address, now) for address in route.addresses.values()):
            self._use_next_server()
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

    def _use_next_server(self) -> None:
        self._preferred = (self._preferred + 1) % len(self.name_servers)

    async def _check_all_there(self, topic: str, timeout: float) -> None:
        """Raise TopicUnavailable if a broker that had the topic lately is away.

        A name server that has just started cannot know the topics of such a broker, and reports that the topic does not
        exist.
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
        """Return the route for reading a topic; raise as `get`.

        For the dead letters of a group that exists but has none yet, the route has no queues.
        """
        try:
            return await self.get(topic, fresh=fresh)
        except TopicNotFound as error:
            if not topic.startswith(DLQ_PREFIX):
                raise
            try:  # each group has its retry topic from its creation on
                await self.get(retry_topic(topic.removeprefix(DLQ_PREFIX)))
            except TopicNotFound:
                raise error from None
            return TopicRoute(topic, ())

    async def get_all(self, topics: Iterable[str], *, fresh: bool = False) -> dict[str, TopicRoute | RayMQError]:
        """Return for each topic its route for reading, or the error.

        All routes are fetched concurrently.
        """

        async def one(topic: str) -> TopicRoute | RayMQError:
            try:
                return await self.readable(topic, fresh=fresh)
            except RayMQError as error:
                return error

        names = list(topics)
        return dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))

    def _refresh_in_background(self) -> None:
        """Start a background check whether a name server answers again, if it is due."""
        loop, asking = asyncio.get_running_loop(), self._asking
        # A task of another loop was inherited from the parent process by a fork.
        if self._silence.is_probe_due and (asking is None or asking.done() or asking.get_loop() is not loop):
            self._asking = loop.create_task(self._see())

    async def _see(self) -> None:
        with contextlib.suppress(RayMQError):
            await self.cluster()

    def _was_there(self, topic: str, now: float) -> bool:
        """Return True if a name server has reported a route of `topic` lately."""
        return any(now - at < ROUTE_SECONDS for at in self._seen_at.get(topic, {}).values())

    def _misses(self, route: TopicRoute, now: float) -> bool:
        """Record the route's brokers; return True if it lacks one that it had lately."""
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
        """Merge new observations of a topic's brokers with those that may come back."""
        seen_at = self._seen_at.get(topic, {}) | seen_at
        seen_at = {broker: at for broker, at in seen_at.items() if now - at < RECENTLY_LEFT_SECONDS}
        writable = self._writable.get(topic, {}) | writable
        if not seen_at:
            self.forget(topic)
            return
        self._seen_at[topic] = seen_at
        self._writable[topic] = {broker: queues for broker, queues in writable.items() if broker in seen_at}

    def _forget_unused(self, now: float) -> None:
        """Drop unused topics, because a program may use another topic for each of its jobs."""
        if len(self._seen_at) <= MAX_TOPICS or now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        for topic, seen_at in list(self._seen_at.items()):
            used_at = self._cached[topic][0] if topic in self._cached else max(seen_at.values())
            if now - used_at > UNUSED_SECONDS:
                self.forget(topic)

    def knows(self, topic: str) -> bool:
        """Return True if a route of `topic` is cached, whether young or old. Any thread."""
        return topic in self._cached

    def keyed(self, route: TopicRoute) -> list[MessageQueue]:
        """Return the queues that sharding keys choose from, sorted. Any thread.

        They are the writable queues, including those of a broker that left the routes less than `RECENTLY_LEFT_SECONDS`
        ago: messages with its keys wait for it, because on another queue they would overtake the messages that are
        stored on it. After that time the broker is not expected back.
        """
        queues, away = route.writable(), self.away(route)
        writable = self._writable.get(route.topic, {})
        return sorted([*queues, *(queue for broker in away for queue in writable.get(broker, ()))]) if away else queues

    def away(self, route: TopicRoute) -> list[str]:
        """Return the brokers that have left the route and may come back, sorted. Any thread."""
        now, seen_at = boottime(), self._seen_at.get(route.topic, {})
        return sorted(
            broker
            for broker, at in seen_at.items()
            if broker not in route.addresses and now - at < RECENTLY_LEFT_SECONDS
        )

    def known(self, topic: str) -> TopicRoute | None:
        """Return the route of `topic` if it is cached and young. Any thread."""
        cached = self._cached.get(topic)
        return cached[1] if cached is not None and boottime() - cached[0] < ROUTE_SECONDS else None

    async def cluster(self, timeout: float = _NAME_SERVER_SECONDS) -> ClusterView:
        """Return all brokers that a name server knows, also those that left lately."""
        answer = await self.ask(GetClusterInfo(raymq_away=True).command(), timeout)
        view = route_answers.read_view(answer.body)
        if len(self._names) > _MAX_NAMES:
            self._names = {}
        self._names.update((address, broker) for broker, address in view.masters.items())
        return view

    def name_at(self, address: str) -> str | None:
        """Return the cached name of the broker at `address`, or None. Any thread."""
        return self._names.get(address)

    async def topics(self, timeout: float = _NAME_SERVER_SECONDS) -> list[str]:
        """Return all topics that a name server knows."""
        answer = await self.ask(Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER), timeout)
        return route_answers.read_topics(answer.body)

    async def broker_at(self, address: str, timeout: float = _NAME_SERVER_SECONDS) -> str:
        """Return the name of the broker that listens at `address`.

        Raise BrokerUnavailable if no name server knows a broker there.
        """
        for _, route in self._cached.values():
            for broker, known in route.addresses.items():
                if known == address:
                    return broker
        for broker, known in (await self.cluster(timeout)).masters.items():
            if known == address:
                return broker
        raise BrokerUnavailable(address, "no name server has a broker at this address")

    def doubt(self, address: str) -> None:
        """Fetch the routes with this address again before they are used.

        Call it when no master answers there.
        """
        now = boottime()
        if now - self._doubted.get(address, -_DOUBT_SECONDS) < _DOUBT_SECONDS or address in self.name_servers:
            return
        if len(self._doubted) > _MAX_NAMES:
            self._doubted = {}
        self._doubted[address] = now
        for topic, (_, route) in self._cached.copy().items():
            if address in route.addresses.values():
                self.invalidate(topic)

    def _drop(self, address: str) -> None:
        """Drop the requests that wait at an address that is in no route any more."""
        if not any(address in route.addresses.values() for _, route in self._cached.values()):
            self._pool.drop(address)

    def invalidate(self, topic: str) -> None:
        """Fetch the route again before it is used.

        The cached route stays in use if no name server answers.
        """
        cached = self._cached.get(topic)
        if cached is not None:
            self._cached[topic] = (boottime() - ROUTE_SECONDS, cached[1])
            self._changed()

    def seconds_until_stale(self, topics: Iterable[str]) -> float:
        """Return for how many seconds all these routes are young.

        Return 0 if one is not cached.
        """
        now = boottime()
        since = [self._cached[topic][0] if topic in self._cached else -ROUTE_SECONDS for topic in topics]
        return max(0.0, min(since, default=now) + ROUTE_SECONDS - now)

    def _changed(self) -> None:
        for call in list(self.on_change):
            call()

    def forget(self, topic: str) -> None:
        """Drop all state of a topic that was deleted."""
        self._cached.pop(topic, None)
        self._seen_at.pop(topic, None)
        self._writable.pop(topic, None)

    async def ask(self, command: Command, timeout: float = _NAME_SERVER_SECONDS, *, patient: bool = True) -> Command:
        """Send a request to the preferred name server, or the next one that answers.

        A name server that has just started is skipped as well, and asked again until it knows the cluster.

        Args:
            patient: if all refuse, or do not know the cluster yet, wait within `timeout` for one that answers.

        Raises:
            BrokerUnavailable: no name server answers within `timeout` seconds.
            TopicUnavailable: a name server answers that the topic's brokers are away.
            ServerBusy: a name server answers, but does not know the cluster yet.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            try:
                return await self._request_once(command, deadline - asyncio.get_running_loop().time(), patient=patient)
            except ServerBusy:  # a name server has answered
                self._silence.answered()
                if not patient or asyncio.get_running_loop().time() + _LEARNING_SECONDS >= deadline:
                    raise
                await asyncio.sleep(_LEARNING_SECONDS)

    async def _request_once(self, command: Command, timeout: float, *, patient: bool) -> Command:
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
        raise BrokerUnavailable("name server", "; ".join(reasons), remedy=NO_CLUSTER_HINT)
