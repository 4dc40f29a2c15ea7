"""Register a broker with its name servers, with a heartbeat every second.

The first registration carries all topics. After that a heartbeat carries only the version of the topic table, and a
registration after a change only the changed topics. A name server that has another version reports this in its answer,
and gets all topics again.

Name servers read one large table after another, so a full registration may take long: one at a time runs beside the
heartbeats, until it is answered or its own time-out ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final, Protocol

from raymq.actors.errors import Timeout
from raymq.actors.protocol import MASTER_ID, BrokerSpec, QueueData
from raymq.actors.wire.commands import registration_commands
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.route_headers import QueryDataVersion, RegisterBroker, UnregisterBroker
from raymq.storage.files.json_file import DataVersion

#: A name server that does not answer within this time is updated by a later heartbeat.
NAME_SERVER_SECONDS = 1.0
#: Topics per additional second of a full registration's time-out: a name server reads them in a fifth of it.
_TOPICS_A_SECOND: Final = 10_000
#: The longest time-out. It doubles after each one that was too short: in half of this one a name server reads as many
#: topics as it takes of all brokers.
_MAX_SECONDS: Final = 120.0

#: How many topics are encoded in one step: some milliseconds.
_STEP_TOPICS: Final = 500

_log = logging.getLogger(__name__)


class AnnouncedTopics(Protocol):
    """The topics that a broker registers."""

    @property
    def version(self) -> DataVersion:
        """Return a version that differs after each change."""

    def advertised_queues(self) -> Mapping[str, QueueData]:
        """Return the queues of every topic; a returned table is never changed."""

    def changed_since(self, version: DataVersion) -> Mapping[str, QueueData | None] | None:
        """Return the topics changed since that version, or None if they are not known.

        The value of a deleted topic is None.
        """


class NameServerRegistration:
    """One broker's registrations with all name servers. Used on the loop of its pool."""

    def __init__(
        self,
        pool: ConnectionPool,
        name_servers: Sequence[str],
        cluster: str,
        broker: str,
        address: str,
        topics: AnnouncedTopics,
        *,
        broker_id: int = MASTER_ID,
        epoch: int = 0,
        ha_address: str = "",
        max_message_bytes: int | None = None,
    ) -> None:
        """Create the registrations, valid while the broker has this place in its group.

        Args:
            broker_id: 0 for the group's master, else the replica's number.
            epoch: in which it is master, or which it follows: name servers take the larger one. 0 without replicas.
            ha_address: where replicas connect to it, "host:port".
            max_message_bytes: the longest body that the broker takes, for clients that request a route.
        """
        self._pool = pool
        self._max_message_bytes = max_message_bytes
        self._who = (cluster, broker, broker_id, address)
        self._epoch = epoch
        self._ha_address = ha_address
        self._topics = topics
        #: Counts requests for a full registration: one that began before the last request does not count.
        self._tellings = 0
        self._peers = [_Peer(name_server) for name_server in name_servers]

    @property
    def troubles(self) -> dict[str, str]:
        """Return, by name server address, why this broker is not in its routes.

        The result is empty if all name servers have the broker.
        """
        return {peer.address: peer.trouble or "no answer yet" for peer in self._peers if peer.told is None}

    def _in_epoch(self, version: DataVersion) -> DataVersion:
        """Return a version of the topics as it is sent, with the epoch."""
        return replace(version, state_version=self._epoch) if self._epoch else version

    async def announce(self) -> None:
        """Register the current state with every name server.

        Return when each has answered or its time-out has passed.
        """
        await asyncio.gather(*(self._within_time(peer, self._tell) for peer in self._peers))

    def invalidate(self) -> None:
        """Send all topics to each name server with the next heartbeat.

        Call it after a change that concerns every topic.
        """
        self._tellings += 1
        for peer in self._peers:
            peer.told = None

    async def leave(self) -> None:
        """Unregister the broker at every name server."""
        for peer in self._peers:
            if peer.telling_all is not None:
                peer.telling_all.cancel()
        await asyncio.gather(*(self._within_time(peer, self._leave) for peer in self._peers))

    async def _within_time(self, peer: _Peer, tell: Callable[[_Peer], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(NAME_SERVER_SECONDS):
                await tell(peer)
        except Exception as error:  # noqa: BLE001 - a failure of one name server must not affect the others
            trouble = str(error) or f"no answer within {NAME_SERVER_SECONDS:g} s"
            level = logging.WARNING if peer.trouble is None else logging.DEBUG
            _log.log(level, "not registered with name server %s: %s", peer.address, trouble)
            peer.trouble = trouble
        else:
            peer.trouble = None

    async def _tell(self, peer: _Peer) -> None:
        async with peer.lock:
            await self._tell_news(peer)
        if (telling_all := peer.telling_all) is not None:
            await asyncio.wait([telling_all])  # the full registration continues after a time-out here
            if not telling_all.cancelled():
                telling_all.result()

    async def _tell_news(self, peer: _Peer) -> None:
        version, sent_version = self._topics.version, peer.told
        self._pool.retry_now(peer.address)  # a restarted name server must get this broker within a heartbeat
        header = QueryDataVersion(*self._who)
        if peer.telling_all is not None:  # a heartbeat keeps the broker registered meanwhile
            await self._pool.request(
                peer.address,
                registration_commands.heartbeat_command(header, self._in_epoch(version)),
                NAME_SERVER_SECONDS,
            )
            return
        changed = None if sent_version is None else self._topics.changed_since(sent_version)
        if sent_version is None or changed is None:
            self._begin_to_tell_all(peer)
            return
        if sent_version == version:
            command = registration_commands.heartbeat_command(header, self._in_epoch(version))
        else:
            since = self._in_epoch(sent_version)
            register = RegisterBroker(*self._who, raymq_since=json.dumps(since.to_json()))
            there = {name: data for name, data in changed.items() if data is not None}
            deleted = [name for name, data in changed.items() if data is None]
            command = await _encoded(register, self._in_epoch(version), there, deleted)
        answer = await self._pool.request(peer.address, command, NAME_SERVER_SECONDS)
        if registration_commands.must_register(answer):
            self._begin_to_tell_all(peer)
        else:
            peer.told = version

    def _begin_to_tell_all(self, peer: _Peer) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            peer.telling_all = None
            if not task.cancelled():
                task.exception()  # no caller may be left that retrieves it

        peer.telling_all = asyncio.get_running_loop().create_task(self._tell_all(peer))
        peer.telling_all.add_done_callback(ended)

    async def _tell_all(self, peer: _Peer) -> None:
        version, topics, telling = self._topics.version, self._topics.advertised_queues(), self._tellings
        header = RegisterBroker(
            *self._who, ha_server_addr=self._ha_address, raymq_max_message_bytes=self._max_message_bytes
        )
        command = await _encoded(header, self._in_epoch(version), topics)
        try:
            await self._pool.request(peer.address, command, registration_timeout(len(topics), peer.times_too_long))
        except Timeout:
            peer.times_too_long += 1
            raise
        peer.told, peer.times_too_long = version if telling == self._tellings else None, 0

    async def _leave(self, peer: _Peer) -> None:
        await self._pool.request(peer.address, UnregisterBroker(*self._who).command(), NAME_SERVER_SECONDS)


def registration_timeout(topics: int, times_too_long: int) -> float:
    """Return the time-out in seconds of a full registration of `topics` topics.

    It doubles with each of `times_too_long` time-outs in a row.
    """
    doubled = float(1 << min(times_too_long, 10))
    return min(_MAX_SECONDS, (NAME_SERVER_SECONDS + topics / _TOPICS_A_SECOND) * doubled)


async def _encoded(
    header: RegisterBroker, version: DataVersion, topics: Mapping[str, QueueData], deleted: Collection[str] = ()
) -> Command:
    """Return the command of `registration_commands.register_command`.

    Between two parts of many topics other tasks run.
    """
    names = iter(topics)
    parts: list[bytes] = []
    while chunk := list(islice(names, _STEP_TOPICS)):
        parts.append(registration_commands.topics_json({name: topics[name] for name in chunk}))
        if len(parts) > 1:
            await asyncio.sleep(0)
    return registration_commands.register_command(header, version, parts, deleted)


class _Peer:
    """One name server, and the version that it has acknowledged."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.told: DataVersion | None = None
        #: Why the last request failed; None after a success.
        self.trouble: str | None = None
        #: One request at a time, because each builds on the previous one.
        self.lock = asyncio.Lock()
        #: The full registration in progress, if any.
        self.telling_all: asyncio.Task[None] | None = None
        #: How many full registrations in a row have timed out.
        self.times_too_long = 0


class _NoTopics:
    version = DataVersion()

    def advertised_queues(self) -> Mapping[str, QueueData]:
        return {}

    def changed_since(self, version: DataVersion) -> Mapping[str, QueueData | None] | None:
        return {} if version == self.version else None


class ReplicaRegistration:
    """The registration of a broker while it follows a master.

    It is used on the loop of its pool.
    """

    def __init__(
        self, pool: ConnectionPool, spec: BrokerSpec, number: int, address: str, replication_address: str
    ) -> None:
        self._pool = pool
        self._spec = spec
        self._number = number
        self._address = address
        self._replication_address = replication_address
        self._epoch = 0
        self._registration: NameServerRegistration | None = None

    @property
    def troubles(self) -> dict[str, str]:
        """Return the problems as `NameServerRegistration.troubles` does."""
        if self._registration is None:
            return dict.fromkeys(self._spec.name_servers, "its role is not known yet")
        return self._registration.troubles

    def follows(self, epoch: int) -> None:
        """Register from now on as a replica that follows the master of this epoch."""
        if self._registration is None or epoch != self._epoch:
            self._epoch = epoch
            self._registration = NameServerRegistration(
                self._pool,
                self._spec.name_servers,
                self._spec.cluster,
                self._spec.name,
                self._address,
                _NoTopics(),
                broker_id=self._number,
                epoch=epoch,
                ha_address=self._replication_address,
            )

    def pause(self) -> None:
        """Stop registering: the broker is master now, and its service registers it."""
        self._registration = None

    async def announce(self) -> None:
        """Register as `NameServerRegistration.announce` does."""
        if self._registration is not None:
            await self._registration.announce()

    async def leave(self) -> None:
        """Unregister as `NameServerRegistration.leave` does."""
        registration, self._registration = self._registration, None
        if registration is not None:
            await registration.leave()
