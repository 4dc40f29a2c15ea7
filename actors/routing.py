"""Routes for clients: asked from any name server, kept for 30 s. Runs on the event loop of its connection pool.

A broker that comes (back) into a route is connected to at once, however long its address has refused before. A route
that has lost a broker is asked for again every 2 s, so that one that was restarted is soon found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from raymq.actors.errors import BrokerUnavailable, RayMQError, ServerBusy, TopicNotFound
from raymq.actors.protocol import ClusterView, MessageQueue, TopicRoute
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands import route as route_answers
from raymq.actors.wire.connection import ConnectionPool
from raymq.actors.wire.frame import Command
from raymq.storage.clock import boottime

ROUTE_SECONDS = 30.0
#: A route that nobody renewed, or that misses a broker, is used for this long before somebody is asked again.
_SHORT_SECONDS = 2.0
#: A broker that has been away for longer than this is not missed any more.
_MISSED_SECONDS = 300.0
#: Above so many addresses the brokers' names are learned anew.
_MOST_NAMES = 1024
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
        #: By address: the broker that was there when a name server was asked last.
        self._names: dict[str, str] = {}
        #: The place in the list of the one that answered last: clients stick to it as long as it answers.
        self._preferred = 0

    async def get(self, topic: str, *, fresh: bool = False, timeout: float = _NAME_SERVER_SECONDS) -> TopicRoute:
        """The route of `topic`.

        Args:
            fresh: ask even if the cached one is young, as after a failure; an old one still serves if nobody answers,
                and for `ROUTE_SECONDS` where a name server does not know the topic.

        Raises:
            TopicNotFound: a name server says that nobody has it.
            BrokerUnavailable: no name server answers, and nothing is cached.
            ProtocolError: what it answers is no route, and nothing is cached.
        """
        known = None if fresh else self.known(topic)
        if known is not None:
            return known
        now = boottime()
        cached = self._cached.get(topic)
        fields = {"topic": topic, "acceptStandardJsonOnly": "true", "raymqLimits": "true"}
        try:
            command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
            answer = await self.ask(command, timeout, patient=cached is None)
            route = route_answers.read_route(topic, answer.body)
        except TopicNotFound:
            if cached is not None and fresh and self._was_there(topic, now):  # one that just started may not know it
                return cached[1]
            self.forget(topic)
            raise
        except RayMQError:
            if cached is not None:
                self._cached[topic] = (max(cached[0], now - ROUTE_SECONDS + _SHORT_SECONDS), cached[1])
                return cached[1]
            raise
        before = {} if cached is None else cached[1].addresses
        for broker, address in route.addresses.items():
            self._names[address] = broker
            if before.get(broker) != address:
                self._pool.retry_now(address)
        seconds = _SHORT_SECONDS if self._misses(route, now) else ROUTE_SECONDS
        self._cached[topic] = (now - ROUTE_SECONDS + seconds, route)
        return route

    def _was_there(self, topic: str, now: float) -> bool:
        """Whether a name server has told a route of `topic` lately."""
        return any(now - at < ROUTE_SECONDS for at in self._seen_at.get(topic, {}).values())

    def _misses(self, route: TopicRoute, now: float) -> bool:
        """Whether it lacks a broker that it had lately."""
        before = self._seen_at.get(route.topic, {})
        lately = {broker: at for broker, at in before.items() if now - at < _MISSED_SECONDS}
        self._seen_at[route.topic] = lately | dict.fromkeys(route.addresses, now)
        writable: dict[str, list[MessageQueue]] = {broker: [] for broker in route.addresses}
        for queue in route.writable():
            writable[queue.broker].append(queue)
        known = self._writable.get(route.topic, {})
        self._writable[route.topic] = {broker: known[broker] for broker in lately if broker in known} | writable
        return any(broker not in route.addresses for broker in lately)

    def keyed(self, route: TopicRoute) -> list[MessageQueue]:
        """What sharding keys choose from: the queues that may be written, sorted. Any thread.

        Those of a broker that has left the routes lately belong to them: its keys wait for it rather than go elsewhere,
        where they would overtake what lies on it. After `_MISSED_SECONDS` it is not expected back.
        """
        queues = route.writable()
        now = boottime()
        seen_at, writable = self._seen_at.get(route.topic, {}), self._writable.get(route.topic, {})
        away = [
            broker for broker, at in seen_at.items() if broker not in route.addresses and now - at < _MISSED_SECONDS
        ]
        return sorted([*queues, *(queue for broker in away for queue in writable.get(broker, ()))]) if away else queues

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

    def forget(self, topic: str) -> None:
        """Drop a cached route."""
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
            ServerBusy: one does, but does not know the cluster yet.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            try:
                return await self._ask_once(command, deadline - asyncio.get_running_loop().time(), patient=patient)
            except ServerBusy:
                if not patient or asyncio.get_running_loop().time() + _LEARNING_SECONDS >= deadline:
                    raise
                await asyncio.sleep(_LEARNING_SECONDS)

    async def _ask_once(self, command: Command, timeout: float, *, patient: bool) -> Command:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        reasons: list[str] = []
        busy: ServerBusy | None = None
        first, count = self._preferred, len(self.name_servers)
        for turn in range(count):
            self._preferred = (first + turn) % count
            share = (deadline - loop.time()) / (count - turn)
            last = turn == count - 1
            try:
                return await self._pool.request(
                    self.name_servers[self._preferred], command, share, patient=patient and last
                )
            except ServerBusy as error:
                busy = error
            except BrokerUnavailable as error:
                reasons.append(str(error))
        if busy is not None:
            raise busy
        raise BrokerUnavailable("name server", "; ".join(reasons))
