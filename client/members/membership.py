"""A consumer's membership: heartbeats to every broker of its topics, and the list of its fellow members.

Runs on the connection's event loop. A broker that restarts forgets its members; a new connection to a broker is
therefore followed by a heartbeat at once, and the members are asked from all brokers and united.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from raymq.actors.errors import BrokerUnavailable, GroupNotFound, RayMQError
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands import group as wire_group
from raymq.actors.wire.commands.group import Member
from raymq.actors.wire.connection import WireConnection
from raymq.client.connection import Connection

HEARTBEAT_SECONDS = 10.0
_REQUEST_SECONDS = 3.0
#: A member that is missing from the lists for less than this is still counted: its broker may have restarted.
VANISHED_SECONDS = 2.0

_log = logging.getLogger(__name__)


class Membership:
    """One client id in one group.

    Args:
        retry_max_times: becomes the group's, once at each broker; None leaves it.
        owners: whether `members` asks who fetches which queue, too.
    """

    def __init__(
        self,
        mq: Connection,
        member: Member,
        *,
        clock: Callable[[], float],
        retry_max_times: int | None = None,
        owners: bool = False,
    ) -> None:
        self._mq = mq
        self._member = member
        self._clock = clock
        self._retry_max_times = retry_max_times
        self._greeted: dict[str, tuple[WireConnection, float]] = {}
        #: Where a greeting was sent, whatever became of the answer: those brokers may know of this member.
        self._may_know: set[str] = set()
        #: Addresses of brokers that could not be greeted yet, and never were.
        self._unmet: frozenset[str] = frozenset()
        self._last_seen: dict[str, float] = {}
        self.settled = True
        self._asks_owners = owners
        #: Who fetched each queue last, as far as a broker has ever told: one that restarted learns it anew.
        self.owners: dict[MessageQueue, str] = {}

    async def heartbeat(self, *, strict: bool = False) -> None:
        """Greet every broker whose connection is new or whose last heartbeat is old.

        Args:
            strict: raise if no broker could be greeted, or one refused, as at the start.

        Raises:
            SubscriptionMismatch: the group subscribes to something else.
            BrokerUnavailable: no broker answers; where another one does, the next heartbeats try again.
        """
        addresses = await self._addresses()
        errors = await asyncio.gather(*(self._greet(address) for address in addresses))
        failures = {address: error for address, error in zip(addresses, errors, strict=True) if error is not None}
        if strict:
            refusals = [error for error in failures.values() if not isinstance(error, BrokerUnavailable)]
            if refusals:
                raise refusals[0]
            if failures and len(failures) == len(addresses):
                raise failures[addresses[0]]
        unmet = failures.keys() - self._greeted.keys()
        for address, error in failures.items():
            level = logging.WARNING if address in unmet - self._unmet else logging.DEBUG
            _log.log(level, "heartbeat of %s: %s", self._member.group, error)
        self._unmet = frozenset(unmet)

    def is_unmet(self, address: str | None) -> bool:
        """Whether the broker there could not be greeted so far: it does not know of this member.

        Its queues are another's for those who ask only that broker for the members, so they must not be consumed yet.
        """
        return address in self._unmet

    async def members(self) -> list[str]:
        """All members as any broker knows them, sorted; [] if no broker answers.

        `settled` tells afterwards whether the list holds only members that a broker named just now.
        """
        lists = await asyncio.gather(*(self._ask(address) for address in await self._addresses()))
        now = self._clock()
        named = {member for found in lists for member in found}
        self._last_seen |= dict.fromkeys(named, now)
        self._last_seen = {m: seen for m, seen in self._last_seen.items() if now - seen < VANISHED_SECONDS}
        self.settled = named == set(self._last_seen)
        return sorted(self._last_seen) if named else []

    async def leave(self) -> None:
        """Tell the brokers, so that the others take over at once; those too that have not answered a greeting."""
        command = wire_group.unregister_command
        await asyncio.gather(
            *(
                self._mq.pool.request(address, command(self._member.client_id, self._member.group), _REQUEST_SECONDS)
                for address in sorted(self._may_know)
            ),
            return_exceptions=True,
        )

    async def _addresses(self) -> Sequence[str]:
        found: set[str] = set()
        for topic, route in (await self._mq.routes.get_all(self._member.subscriptions)).items():
            if isinstance(route, RayMQError):
                _log.debug("route of %s: %s", topic, route)
            else:
                found.update(route.addresses.values())
        return sorted(found)

    async def _greet(self, address: str) -> RayMQError | None:
        try:
            connection = await self._mq.pool.get(address, _REQUEST_SECONDS)
            known, at = self._greeted.get(address, (None, 0.0))
            if known is connection and self._clock() - at < HEARTBEAT_SECONDS:
                return None
            if known is None and self._retry_max_times is not None:
                settings = wire_group.create_group_command(self._member.group, self._retry_max_times)
                await connection.request(settings, _REQUEST_SECONDS)
            self._may_know.add(address)
            await connection.request(wire_group.heartbeat_command(self._member), _REQUEST_SECONDS)
            self._greeted[address] = (connection, self._clock())
        except RayMQError as error:
            return error
        return None

    async def _ask(self, address: str) -> list[str]:
        try:
            command = wire_group.members_command(self._member.group, owners=self._asks_owners)
            answer = await self._mq.pool.request(address, command, _REQUEST_SECONDS)
            if self._asks_owners:
                self.owners |= wire_group.read_owners(answer)
            return wire_group.read_members(answer)
        except GroupNotFound:
            return []
        except RayMQError as error:
            _log.debug("members at %s: %s", address, error)
            return []
