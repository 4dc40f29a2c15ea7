"""Register a consumer in its group by heartbeats, and list the group's members.

Heartbeats go to every broker of the consumer's topics. Runs on the connection's event loop. A broker that restarts
loses its list of members; each new connection to a broker is therefore followed by a heartbeat at once, and the members
are queried from all brokers and merged. The wait between two heartbeats ends early when a connection ends or a route
changes.

If a topic does not exist, the connection polls for it (`raymq.client.missing_topics`), and meanwhile every master gets
heartbeats, since any of them may get the topic.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from raymq.actors.errors import (
    NO_CLUSTER_HINT,
    BrokerUnavailable,
    GroupNotFound,
    RayMQError,
    SubscriptionMismatch,
    TopicNotFound,
    topic_not_found,
)
from raymq.actors.protocol import MessageQueue, TopicRoute
from raymq.actors.wire.commands import group_commands as wire_group
from raymq.actors.wire.commands.group_commands import Member
from raymq.actors.wire.connection_pool import WireConnection
from raymq.client.connection import Connection

HEARTBEAT_SECONDS = 10.0
_REQUEST_SECONDS = 3.0
#: Brokers that do not answer for this time are logged; restarting brokers are back sooner.
_LOG_AWAY_SECONDS = 5.0
#: The pause before a retry after a failure or for a missing topic, and the shorter one after an event that ends the
#: wait early.
RETRY_SECONDS = 1.0
_SOON_SECONDS = 0.1
#: A member that is missing from the lists for less than this still counts: its broker may have restarted.
VANISHED_SECONDS = 2.0

_log = logging.getLogger(__name__)
#: The log of a program's consumers, for its operators.
_consumer_log = logging.getLogger("raymq.consumer")


class Membership:
    """The membership of one client id in one group.

    Args:
        retry_max_times: set as the group's value, once at each broker; None leaves the group's value.
        owners: whether `members` also queries which member fetches each queue.
        on_found: called with the topics that were missing and exist now.
        on_superseded: called once, when a broker reports that a subscription of a higher version is in force.
    """

    def __init__(
        self,
        mq: Connection,
        member: Member,
        *,
        clock: Callable[[], float],
        retry_max_times: int | None = None,
        owners: bool = False,
        on_found: Callable[[frozenset[str]], None] = lambda _: None,
        on_superseded: Callable[[SubscriptionMismatch], None] = lambda _: None,
    ) -> None:
        self._mq = mq
        self._member = member
        self._clock = clock
        self._retry_max_times = retry_max_times
        self._on_found = on_found
        self._on_superseded = on_superseded
        self._is_superseded = False
        #: Whether the next heartbeat goes to all brokers, even if their last one is recent: the group has changed.
        self.is_greeting_all = False
        #: Subscribed topics that a broker or a name server reports as missing, with the value that `routes` returns for
        #: each.
        self._missing: dict[str, TopicNotFound | TopicRoute] = {}
        #: Those that do not exist at all, as a name server reports.
        self._waits_for: frozenset[str] = frozenset()
        #: Addresses of brokers that get heartbeats only because a topic is missing.
        self._beyond: frozenset[str] = frozenset()
        #: Topics that other members wait for, or waited for a moment ago, as of the last `members`.
        self.awaited_by_group: frozenset[str] = frozenset()
        self._greeted: dict[str, tuple[WireConnection, float, Member]] = {}
        #: Addresses to which a heartbeat was sent, also without an answer: those brokers may have registered this
        #: member.
        self._may_know: set[str] = set()
        #: Addresses of brokers to which no heartbeat has succeeded so far.
        self._unmet: frozenset[str] = frozenset()
        #: The brokers of the last heartbeat, and whether all of them accepted it and no route was missing.
        self._current: Sequence[str] = ()
        self._is_well = False
        #: The time since which some brokers do not answer, and whether that was logged.
        self._away_since: float | None = None
        self._has_logged_away = False
        self._woken = asyncio.Event()
        self._last_seen: dict[str, float] = {}
        self.is_stable = True
        self._asks_owners = owners
        #: The last member that fetched each queue, merged from all answers so far: a restarted broker has to learn it
        #: again.
        self.owners: dict[MessageQueue, str] = {}

    @property
    def member(self) -> Member:
        """Return the client as it describes itself to brokers."""
        return self._member

    async def keep(self, succeeded: Callable[[], None]) -> None:
        """Send heartbeats to every broker until cancelled, and call `succeeded` after each round.

        A broker that is new, or whose connection has ended, gets a heartbeat within a second.
        """
        lost, changed = self._mq.pool.on_lost, self._mq.routes.on_change
        lost.add(self._connection_lost)
        changed.add(self._wake)
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._seconds_until_due()):
                        await self._woken.wait()
                        await asyncio.sleep(_SOON_SECONDS)
                self._woken.clear()
                try:
                    await self.heartbeat()
                except RayMQError as error:
                    self._is_well = False
                    self._log_brokers_away(error)
                    _log.debug("heartbeat of %s: %s", self._member.group, error)
                succeeded()
        finally:
            lost.discard(self._connection_lost)
            changed.discard(self._wake)

    def _seconds_until_due(self) -> float:
        if not self._is_well or self._missing or not self._greeted.keys() >= set(self._current):
            return RETRY_SECONDS
        # Jitter: the members of one process should not all query the same route at the same moment.
        until_old = self._mq.routes.seconds_until_stale(self._member.subscriptions) + random.uniform(0.0, RETRY_SECONDS)
        oldest = min(self._greeted[address][1] for address in self._current)
        return max(_SOON_SECONDS, min(until_old, oldest + HEARTBEAT_SECONDS - self._clock()))

    def heartbeat_all(self) -> None:
        """Send a heartbeat to every broker now."""
        self.is_greeting_all = True
        self._woken.set()

    def _wake(self) -> None:
        self._woken.set()

    def _connection_lost(self, address: str) -> None:
        if address in self._greeted:
            self._woken.set()

    async def heartbeat(self, *, strict: bool = False) -> None:
        """Send a heartbeat to each broker that is due for one.

        A heartbeat is due if the connection is new, the last heartbeat is old, the member has changed, or
        `heartbeat_all` was called.

        Args:
            strict: raise if no broker accepted the heartbeat, or one refused it; used at the start.

        Raises:
            SubscriptionMismatch: the group has another subscription.
            BrokerUnavailable: no broker answers; if some brokers answer, the next heartbeats try the others again.
        """
        if self._is_superseded:
            return
        addresses, knows_all = await self._addresses()
        if strict and not addresses:
            raise BrokerUnavailable("cluster", "no broker is registered at the name server", remedy=NO_CLUSTER_HINT)
        anew, self.is_greeting_all = self.is_greeting_all, False
        errors = await asyncio.gather(*(self._greet(address, anew=anew) for address in addresses))
        failures = {address: error for address, error in zip(addresses, errors, strict=True) if error is not None}
        if strict:
            refusals = [error for error in failures.values() if not isinstance(error, BrokerUnavailable)]
            if refusals:
                raise refusals[0]
            if failures and len(failures) == len(addresses):
                raise failures[addresses[0]]
        self._current = addresses
        self._is_well = knows_all and bool(addresses) and not failures
        unreached = failures.keys() - self._greeted.keys()
        for error in failures.values():
            if isinstance(error, SubscriptionMismatch) and error.in_force is not None:
                self.supersede(error)
                return
        for address, error in failures.items():
            level = logging.WARNING if address in unreached - self._unmet else logging.DEBUG
            _log.log(level, "heartbeat of %s: %s", self._member.group, error)
        self._unmet = frozenset(unreached)
        away = [error for address, error in failures.items() if isinstance(error, BrokerUnavailable)]
        if not addresses and not self._missing:
            away.append(BrokerUnavailable("cluster", "no broker of its topics is registered"))
        self._log_brokers_away(away[0] if away else None)

    def _log_brokers_away(self, error: RayMQError | None) -> None:
        """Log once when brokers have not answered for a while, and once when all do.

        `error` is that of a broker; None: all brokers answer now.
        """
        now = self._clock()
        if error is None:
            if self._away_since is not None and self._has_logged_away:
                away_seconds = now - self._away_since
                _consumer_log.warning(
                    "group %s continues: its brokers answer again after %.0f s", self._member.group, away_seconds
                )
            self._away_since, self._has_logged_away = None, False
        elif self._away_since is None:
            self._away_since = now
        elif not self._has_logged_away and now - self._away_since >= _LOG_AWAY_SECONDS:
            self._has_logged_away = True
            _consumer_log.warning("group %s waits for a broker that does not answer: %s", self._member.group, error)

    def supersede(self, error: SubscriptionMismatch) -> None:
        """End this membership and call `on_superseded`, once.

        A broker reports that members of the group subscribe with a higher version.
        """
        if not self._is_superseded:
            self._is_superseded = True
            _consumer_log.warning("group %s: one of its consumers ends: %s", self._member.group, error)
            self._on_superseded(error)

    def is_unreached(self, address: str | None) -> bool:
        """Return True if no heartbeat to the broker at this address has succeeded so far.

        The broker does not list this member then. Members that query only that broker assign its queues to others, so
        this member must not consume them yet.
        """
        return address in self._unmet

    async def members(self) -> list[str]:
        """Return all members that any broker lists, sorted; [] if no broker answers.

        After the call `is_stable` is True if the list has only members that a broker listed just now.
        """
        awaited: set[str] = set()
        addresses, _ = await self._addresses()
        lists = await asyncio.gather(*(self._request(address, awaited) for address in addresses))
        self.awaited_by_group = frozenset(awaited)
        now = self._clock()
        named = {member for found in lists for member in found}
        self._last_seen |= dict.fromkeys(named, now)
        self._last_seen = {m: seen for m, seen in self._last_seen.items() if now - seen < VANISHED_SECONDS}
        self.is_stable = named == set(self._last_seen)
        if named and self._member.client_id not in named:
            self.heartbeat_all()
            await self.heartbeat()
        return sorted(self._last_seen) if named else []

    async def leave(self) -> None:
        """Unregister this member at the brokers, so that the others take over at once.

        Brokers that have not answered a heartbeat are included.
        """
        if self._missing:
            self._mq.missing_topics.wait_for(self, set())
        await self._leave(self._may_know)

    async def _leave(self, addresses: Iterable[str]) -> None:
        command = wire_group.unregister_command
        await asyncio.gather(
            *(
                self._mq.pool.request(address, command(self._member.client_id, self._member.group), _REQUEST_SECONDS)
                for address in sorted(addresses)
            ),
            return_exceptions=True,
        )

    # -- topics that do not exist ---------------------------------------------------------------------------------

    async def routes(self, topics: Iterable[str], *, fresh: bool = False) -> dict[str, TopicRoute | RayMQError]:
        """Return the same as `RouteCache.get_all`, without querying topics known to be missing."""
        names = list(topics)
        missing = {name: self._missing[name] for name in names if name in self._missing}
        answers = await self._mq.routes.get_all([name for name in names if name not in missing], fresh=fresh)
        absent: list[str] = []
        for topic, route in answers.items():
            if topic in self._member.subscriptions:
                if isinstance(route, TopicNotFound):
                    self._missing[topic] = route
                    absent.append(topic)
                elif isinstance(route, TopicRoute) and not route.addresses and not route.away:
                    self._missing[topic] = route  # the dead-letter topic of a group that has no dead letters
        if self._missing:
            self._wait_for(absent)
        # A poll may have found a missing topic meanwhile: the next call asks for its route.
        return {name: self._missing.get(name) or answers.get(name) or missing[name] for name in names}

    def doubt(self, topic: str, error: TopicNotFound) -> None:
        """Record that a broker does not have the topic, and poll whether any broker has."""
        if topic in self._member.subscriptions and topic not in self._missing:
            self._missing[topic] = error
            self._wait_for(())

    def topics_listed(self, existing: frozenset[str]) -> None:
        """Handle the topics that a poll found; see `missing_topics.Waiter`."""
        found = frozenset(existing & self._waits_for)
        is_any_back = bool(existing & self._missing.keys())
        for topic in existing:
            self._missing.pop(topic, None)
            self._mq.routes.invalidate(topic)
        self._waits_for -= existing
        self._wait_for([topic for topic, known in self._missing.items() if isinstance(known, TopicNotFound)])
        if found:
            _consumer_log.info("group %s: %s exists now", self._member.group, ", ".join(sorted(found)))
        if is_any_back:
            self._on_found(found)

    def _wait_for(self, absent: Iterable[str]) -> None:
        """Poll for all missing topics; `absent` are those that a name server reports as missing."""
        self._mq.missing_topics.wait_for(self, set(self._missing))
        new = sorted(set(absent) - self._waits_for)
        if new:
            self._waits_for |= frozenset(new)
            text = "; ".join(f"waits for topic {topic}, which does not exist" for topic in new)
            remedy = topic_not_found(new[0]).remedy
            _consumer_log.warning("group %s %s%s", self._member.group, text, f" ({remedy})" if remedy else "")
        if self._member.waits_for != self._waits_for:
            self._member = replace(self._member, waits_for=self._waits_for)

    async def _addresses(self) -> tuple[Sequence[str], bool]:
        """Return the subscribed topics' brokers, and whether all routes are known."""
        found: set[str] = set()
        knows_all = True
        for topic, route in (await self.routes(self._member.subscriptions)).items():
            if isinstance(route, RayMQError):
                knows_all = False
                _log.debug("route of %s: %s", topic, route)
            else:
                found.update(route.addresses.values())
        if self._missing:
            masters = await self._mq.missing_topics.read_masters()
            self._beyond = (self._beyond | masters) - found
            found |= masters
        elif self._beyond:
            departed, self._beyond = self._beyond - found, frozenset()
            for address in departed:
                self._greeted.pop(address, None)
            self._may_know -= departed
            await self._leave(departed)
        return sorted(found), knows_all

    async def _greet(self, address: str, *, anew: bool) -> RayMQError | None:
        try:
            connection = await self._mq.pool.get(address, _REQUEST_SECONDS)
            known, at, greeted_member = self._greeted.get(address, (None, 0.0, None))
            member = self._member
            if not anew and known is connection and self._clock() - at < HEARTBEAT_SECONDS and greeted_member == member:
                return None
            if known is None and self._retry_max_times is not None:
                settings = wire_group.create_group_command(self._member.group, self._retry_max_times)
                await connection.request(settings, _REQUEST_SECONDS)
            self._may_know.add(address)
            await connection.request(wire_group.heartbeat_command(member), _REQUEST_SECONDS)
            self._greeted[address] = (connection, self._clock(), member)
        except RayMQError as error:
            return error
        return None

    async def _request(self, address: str, awaited: set[str]) -> list[str]:
        try:
            command = wire_group.members_command(self._member.group, owners=self._asks_owners)
            answer = await self._mq.pool.request(address, command, _REQUEST_SECONDS)
            if self._asks_owners:
                self.owners |= wire_group.read_owners(answer)
            awaited |= wire_group.read_awaited_topics(answer)
            return wire_group.read_members(answer)
        except GroupNotFound:
            return []
        except RayMQError as error:
            _log.debug("members at %s: %s", address, error)
            return []
