"""Sync a broker with all others: it registers with each and copies their coordinators.

Until it has synced with all brokers that ever existed, it does not report that a coordinator does not exist; see
`core.coordinator_directory`. Which brokers ever existed is reported by the name servers, which keep the names of
brokers in their configuration, and by the brokers with which it syncs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from raymq.actors.backoff import Backoff
from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.errors import MessageNotFound, RayMQError, StoreError
from raymq.actors.route_cache import RouteCache
from raymq.actors.wire.commands import coordinator_directory_commands as wire
from raymq.actors.wire.commands.target_broker import with_target_broker
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.storage.tables.coordinator_table import is_valid_broker

#: Time-out of one request.
_REQUEST_SECONDS: Final = 5.0
#: How often a fully synced broker looks for brokers that were not reported to it.
_LOOK_SECONDS: Final = 10.0
#: The longest pause if the sync with some brokers failed.
_LONGEST_SECONDS: Final = 5.0

_log = logging.getLogger(__name__)


class MembershipSync:
    """The membership sync of one broker.

    It is used on the broker's event loop, one call at a time.
    """

    def __init__(self, core: BrokerCore, routes: RouteCache, pool: ConnectionPool) -> None:
        self._core = core
        self._routes = routes
        self._pool = pool
        self._backoff = Backoff(first=0.2, cap=_LONGEST_SECONDS)

    async def sync_members(self) -> float:
        """Sync with new brokers; return the seconds to the next call."""
        try:
            complete = await self._sync_all()
        except StoreError:
            raise
        except RayMQError as error:
            _log.info("%s cannot find the other brokers now: %s", self._core.name, error)
            complete = False
        if not complete:
            return self._backoff.next_delay()
        self._backoff.reset()
        return _LOOK_SECONDS

    async def _sync_all(self) -> bool:
        """Return True if this broker is now synced with all brokers that ever existed."""
        directory, own = self._core.coordinators, self._core.name
        # The routes must already list this broker: of two that start at the same time, one then finds the other.
        view = (await self._routes.cluster()).masters
        if own not in view:
            return False
        names_by_server = await self._kept_names()
        brokers = {name for names in (view, *names_by_server.values()) for name in names if is_valid_broker(name)}
        await asyncio.to_thread(directory.merge, (), brokers)
        tried: set[str] = set()
        while found := [name for name in directory.unsynced_brokers() if name in view and name not in tried]:
            for name in found:
                tried.add(name)
                try:
                    await self._sync_with(name, view[name])
                except RayMQError as error:
                    _log.info("%s could not sync with %s yet: %s", own, name, error)
        directory.mark_discovered()
        for name_server, names in names_by_server.items():
            if own not in names:
                await self._pool.request(name_server, wire.add_broker_command(own), _REQUEST_SECONDS)
        return not directory.unsynced_brokers()

    async def _kept_names(self) -> Mapping[str, Sequence[str]]:
        """Return the broker names that each name server keeps, of those that answer.

        Raise the error of the last failed name server if none answers.
        """
        names_by_server: dict[str, Sequence[str]] = {}
        problem: RayMQError | None = None
        for name_server in self._routes.name_servers:
            try:
                answer = await self._pool.request(name_server, wire.known_brokers_command(), _REQUEST_SECONDS)
                names_by_server[name_server] = wire.read_known_brokers(answer)
            except MessageNotFound:
                names_by_server[name_server] = ()
            except RayMQError as error:
                problem = error
        if not names_by_server and problem is not None:
            raise problem
        return names_by_server

    async def _sync_with(self, broker: str, address: str) -> None:
        directory, after = self._core.coordinators, ""
        while True:
            command = with_target_broker(broker, wire.copy_coordinators_command(self._core.name, after))
            page = wire.read_coordinator_page(await self._pool.request(address, command, _REQUEST_SECONDS))
            await asyncio.to_thread(directory.merge, page.entries, filter(is_valid_broker, page.members))
            if not page.last:
                break
            after = page.last
        await asyncio.to_thread(directory.mark_synced, broker)
