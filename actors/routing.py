"""Routes for clients: asked from any name server, kept for 30 s. Runs on the event loop of its connection pool."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from raymq.actors.errors import BrokerUnavailable, RayMQError, ServerBusy, TopicNotFound
from raymq.actors.protocol import ClusterView, TopicRoute
from raymq.actors.wire import route as wire_route
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.connection import ConnectionPool
from raymq.actors.wire.frame import Command

ROUTE_SECONDS = 30.0
#: One that has just started, and does not know the cluster yet, is asked again after this pause.
_LEARNING_SECONDS = 0.2
#: A name server that does not answer within this time is passed over for the next one.
_NAME_SERVER_SECONDS = 3.0


class Routes:
    """The route of each topic. A name server's death is invisible: what is cached stays in use until one answers."""

    def __init__(self, pool: ConnectionPool, name_servers: Sequence[str]) -> None:
        self._pool = pool
        self.name_servers = list(name_servers)
        self._cached: dict[str, tuple[float, TopicRoute]] = {}

    async def get(self, topic: str, *, fresh: bool = False, timeout: float = _NAME_SERVER_SECONDS) -> TopicRoute:
        """The route of `topic`.

        Args:
            fresh: ask even if the cached one is young, as after a failure; an old one still serves if nobody answers.

        Raises:
            TopicNotFound: a name server says that nobody has it.
            BrokerUnavailable: no name server answers, and nothing is cached.
        """
        now = asyncio.get_running_loop().time()
        cached = self._cached.get(topic)
        if cached is not None and not fresh and now - cached[0] < ROUTE_SECONDS:
            return cached[1]
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        try:
            answer = await self.ask(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields), timeout)
        except TopicNotFound:
            if cached is not None and fresh:  # a name server that has just started knows nothing yet
                return cached[1]
            raise
        except RayMQError:
            if cached is not None:
                return cached[1]
            raise
        route = wire_route.read_route(topic, answer.body)
        self._cached[topic] = (now, route)
        return route

    async def cluster(self, timeout: float = _NAME_SERVER_SECONDS) -> ClusterView:
        """All brokers that a name server knows."""
        return wire_route.read_view((await self.ask(Command(RequestCode.GET_BROKER_CLUSTER_INFO), timeout)).body)

    async def topics(self, timeout: float = _NAME_SERVER_SECONDS) -> list[str]:
        """All topics that a name server knows."""
        answer = await self.ask(Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER), timeout)
        return sorted(json.loads(bytes(answer.body))["topicList"])

    def forget(self, topic: str) -> None:
        """Drop a cached route."""
        self._cached.pop(topic, None)

    async def ask(self, command: Command, timeout: float = _NAME_SERVER_SECONDS) -> Command:
        """Send a request to the first name server that answers.

        One that has just started is asked again until it knows the cluster.

        Raises:
            BrokerUnavailable: none answers within `timeout` seconds.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            try:
                return await self._ask_once(command, deadline - asyncio.get_running_loop().time())
            except ServerBusy:
                if asyncio.get_running_loop().time() + _LEARNING_SECONDS >= deadline:
                    raise
                await asyncio.sleep(_LEARNING_SECONDS)

    async def _ask_once(self, command: Command, timeout: float) -> Command:
        reasons: list[str] = []
        for address in list(self.name_servers):
            try:
                share = timeout / max(1, len(self.name_servers) - len(reasons))
                return await self._pool.request(address, command, share)
            except BrokerUnavailable as error:
                reasons.append(str(error))
        raise BrokerUnavailable("name server", "; ".join(reasons) or "no address was given")
