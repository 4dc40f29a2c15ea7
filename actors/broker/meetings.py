"""The duty of a broker to meet all others of the cluster: to be known by each, and to know of all homes that they know.

Until it has met all that were ever there it does not say of a home that there is none; see `core.known_homes`. Who was
ever there the name servers tell, who keep the names of brokers in their configuration, and the brokers that are met.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from raymq.actors.backoff import Backoff
from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.errors import MessageNotFound, RayMQError
from raymq.actors.routing import Routes
from raymq.actors.wire.commands import homes as wire
from raymq.actors.wire.commands import members as wire_members
from raymq.actors.wire.commands.meant import meant_for
from raymq.actors.wire.connection import ConnectionPool
from raymq.storage.tables.members import is_broker

#: What one question may take.
_REQUEST_SECONDS: Final = 5.0
#: How often a broker that has met all looks whether somebody is there of whom nobody has told it.
_LOOK_SECONDS: Final = 10.0
#: The longest pause where some could not be met.
_LONGEST_SECONDS: Final = 5.0

_log = logging.getLogger(__name__)


class Meetings:
    """Used on the broker's event loop, one call at a time."""

    def __init__(self, core: BrokerCore, routes: Routes, pool: ConnectionPool, clock: Callable[[], float]) -> None:
        """`clock` is seconds that do not go back."""
        self._core = core
        self._routes = routes
        self._pool = pool
        self._clock = clock
        self._next = 0.0
        self._backoff = Backoff(first=0.2, cap=_LONGEST_SECONDS)

    async def meet_others(self) -> float:
        """Look, if it is time, who is there, and meet them; returns after how many seconds to look again."""
        if self._clock() < self._next:
            return self._next - self._clock()
        complete = False
        try:
            complete = await self._look()
        finally:
            if complete:
                self._backoff.reset()
            self._next = self._clock() + (_LOOK_SECONDS if complete else self._backoff.next_delay())
        return self._next - self._clock()

    async def _look(self) -> bool:
        """Whether all that were ever there are met now."""
        homes, own = self._core.homes, self._core.name
        # The routes are read when this broker is in them: of two that start together one sees the other.
        view = (await self._routes.cluster()).masters
        if own not in view:
            return False
        kept = await self._kept_names()
        heard = {name for names in (view, *kept.values()) for name in names if is_broker(name)}
        await asyncio.to_thread(homes.heard_of, heard)
        tried: set[str] = set()
        while found := [name for name in homes.unmet() if name in view and name not in tried]:
            for name in found:
                tried.add(name)
                try:
                    await self._meet(name, view[name])
                except RayMQError as error:
                    _log.info("%s has not met %s yet: %s", own, name, error)
        homes.looked()
        for name_server, names in kept.items():
            if own not in names:
                await self._pool.request(name_server, wire_members.member_command(own), _REQUEST_SECONDS)
        return not homes.unmet()

    async def _kept_names(self) -> Mapping[str, Sequence[str]]:
        """The brokers that each name server has kept the names of, as far as it answers."""
        kept: dict[str, Sequence[str]] = {}
        problem: RayMQError | None = None
        for name_server in self._routes.name_servers:
            try:
                answer = await self._pool.request(name_server, wire_members.members_command(), _REQUEST_SECONDS)
                kept[name_server] = wire_members.read_members(answer)
            except MessageNotFound:
                kept[name_server] = ()
            except RayMQError as error:
                problem = error
        if not kept and problem is not None:
            raise problem
        return kept

    async def _meet(self, broker: str, address: str) -> None:
        homes, after = self._core.homes, ""
        while True:
            command = meant_for(broker, wire.copy_homes_command(self._core.name, after))
            told = wire.read_copied(await self._pool.request(address, command, _REQUEST_SECONDS))
            await asyncio.to_thread(homes.copy, told.homes)
            await asyncio.to_thread(homes.heard_of, filter(is_broker, told.members))
            if not told.last:
                break
            after = told.last
        await asyncio.to_thread(homes.met, broker)
