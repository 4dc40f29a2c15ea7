"""Poll the name server for missing topics that consumers of one connection subscribe to.

One poll covers all of them. Runs on the connection's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from raymq.actors.errors import RayMQError
from raymq.actors.route_cache import RouteCache

#: The interval of the polls in seconds, while a consumer waits for a topic.
POLL_SECONDS: Final = 0.5

_log = logging.getLogger(__name__)


class Waiter(Protocol):
    """A consumer that waits for topics."""

    def topics_listed(self, existing: frozenset[str]) -> None:
        """Handle the topics that a poll found.

        `existing` are those that exist of the topics that this consumer waits for.
        """


class MissingTopics:
    """The topics that each consumer waits for. It polls only while one waits."""

    def __init__(self, routes: RouteCache) -> None:
        self._routes = routes
        self._waiting: dict[Waiter, set[str]] = {}
        self._polling: asyncio.Task[None] | None = None
        #: The addresses of all masters as of the last poll; empty before the first one.
        self.masters: frozenset[str] = frozenset()

    def wait_for(self, waiter: Waiter, topics: set[str]) -> None:
        """Replace the topics that `waiter` waits for; an empty set ends the wait."""
        if topics:
            self._waiting[waiter] = topics
            if self._polling is None or self._polling.done():
                self._polling = asyncio.get_running_loop().create_task(self._poll())
        elif self._waiting.pop(waiter, None) is not None and not self._waiting and self._polling is not None:
            self._polling.cancel()
            self._polling = None
            self.masters = frozenset()  # they may have changed before the next consumer waits

    async def read_masters(self) -> frozenset[str]:
        """Return the addresses of all masters.

        Raise BrokerUnavailable if no name server answers.
        """
        if not self.masters:
            self.masters = frozenset((await self._routes.cluster()).masters.values())
        return self.masters

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                existing = frozenset(await self._routes.topics())
                self.masters = frozenset((await self._routes.cluster()).masters.values())
            except RayMQError as error:
                _log.debug("poll for missing topics: %s", error)
                continue
            for waiter, topics in list(self._waiting.items()):
                waiter.topics_listed(existing & topics)
