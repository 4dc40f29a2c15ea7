"""The topics that the consumers of one connection wait for: one poll looks for all of them.

Runs on the connection's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from raymq.actors.errors import RayMQError
from raymq.actors.routing import Routes

#: How often a name server is asked which topics exist, while a consumer waits for one.
POLL_SECONDS: Final = 0.5

_log = logging.getLogger(__name__)


class Waiter(Protocol):
    """A consumer that waits for topics."""

    def topics_listed(self, existing: frozenset[str]) -> None:
        """Handle an answer of a name server: of the topics that this consumer waits for, those that exist."""


class MissingTopics:
    """Which consumer waits for which topics. It polls only while one waits."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._waiting: dict[Waiter, set[str]] = {}
        self._polling: asyncio.Task[None] | None = None
        #: The addresses of all masters, as the last poll found them; empty before the first one.
        self.masters: frozenset[str] = frozenset()

    def wait_for(self, waiter: Waiter, topics: set[str]) -> None:
        """Look for these topics, and for no others, for `waiter`; an empty set ends its waiting."""
        if topics:
            self._waiting[waiter] = topics
            if self._polling is None or self._polling.done():
                self._polling = asyncio.get_running_loop().create_task(self._poll())
        elif self._waiting.pop(waiter, None) is not None and not self._waiting and self._polling is not None:
            self._polling.cancel()
            self._polling = None
            self.masters = frozenset()  # they may be others when somebody waits again

    async def read_masters(self) -> frozenset[str]:
        """Return the addresses of all masters; BrokerUnavailable where no name server answers."""
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
