"""A broker's side of the name servers: it registers with each, and says every second that it lives.

All topics are told once; after that a heartbeat carries only the version of the topic table, and a change only what
changed. A name server that knows another version answers so, and is told everything again.

Name servers read one large table after another, so telling everything may take its time: it goes on beside the
heartbeats, once, until it is answered or its own patience ends.
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
from raymq.actors.protocol import MASTER_ID, QueueData
from raymq.actors.wire.commands import registration
from raymq.actors.wire.connection import ConnectionPool
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.route import QueryDataVersion, RegisterBroker, UnregisterBroker
from raymq.storage.files.json_file import DataVersion

#: A name server that has not answered by then learns it from a later heartbeat.
NAME_SERVER_SECONDS = 1.0
#: For so many topics a full registration has one more second: a name server reads them in a fifth of it. ...
_TOPICS_A_SECOND: Final = 10_000
#: ... After each time that was too short it has twice as much, up to this: in half of it a name server reads as many
#: topics as it takes of all brokers.
_MOST_SECONDS: Final = 120.0

#: Of how many topics is told in one step: some milliseconds.
_STEP_TOPICS: Final = 500

_log = logging.getLogger(__name__)


class AnnouncedTopics(Protocol):
    """What a broker says of its topics."""

    @property
    def version(self) -> DataVersion:
        """Another one after each change."""

    def announced(self) -> Mapping[str, QueueData]:
        """Every topic; a table that was given never changes."""

    def changed_since(self, version: DataVersion) -> Mapping[str, QueueData | None] | None:
        """What was changed after that version, None of what was deleted; None if that is not known."""


class Registration:
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
        """For as long as the broker has this place in its group.

        Args:
            broker_id: 0 for the group's master, else the replica's number.
            epoch: the one that it is master in, or follows: the larger one is believed. 0 where it has one copy.
            ha_address: where replicas connect to it, "host:port".
            max_message_bytes: the longest body that the broker takes, for clients that ask for a route.
        """
        self._pool = pool
        self._max_message_bytes = max_message_bytes
        self._who = (cluster, broker, broker_id, address)
        self._epoch = epoch
        self._ha_address = ha_address
        self._topics = topics
        #: How often all topics were to be told again; what was begun before does not count.
        self._tellings = 0
        self._peers = [_Peer(name_server) for name_server in name_servers]

    @property
    def troubles(self) -> dict[str, str]:
        """Why this broker is not in the routes of a name server, by its address; empty where all have it."""
        return {peer.address: peer.trouble or "no answer yet" for peer in self._peers if peer.told is None}

    def _in_epoch(self, version: DataVersion) -> DataVersion:
        """A version of the topics as it is told."""
        return replace(version, state_version=self._epoch) if self._epoch else version

    async def announce(self) -> None:
        """Tell every name server what is true now; returns when each has answered, or had its time."""
        await asyncio.gather(*(self._within_time(peer, self._tell) for peer in self._peers))

    def tell_all_again(self) -> None:
        """What is true of every topic has changed: each name server is told all of them with the next heartbeat."""
        self._tellings += 1
        for peer in self._peers:
            peer.told = None

    async def leave(self) -> None:
        """Leave the routes of every name server."""
        for peer in self._peers:
            if peer.telling_all is not None:
                peer.telling_all.cancel()
        await asyncio.gather(*(self._within_time(peer, self._leave) for peer in self._peers))

    async def _within_time(self, peer: _Peer, tell: Callable[[_Peer], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(NAME_SERVER_SECONDS):
                await tell(peer)
        except Exception as error:  # noqa: BLE001 - whatever one name server causes is not that of the others
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
            await asyncio.wait([telling_all])  # if the time is up before, it goes on
            if not telling_all.cancelled():
                telling_all.result()

    async def _tell_news(self, peer: _Peer) -> None:
        version, told_version = self._topics.version, peer.told
        self._pool.retry_now(peer.address)  # one that comes back must learn of this broker within a heartbeat
        header = QueryDataVersion(*self._who)
        if peer.telling_all is not None:  # this broker lives all the same
            await self._pool.request(
                peer.address, registration.heartbeat_command(header, self._in_epoch(version)), NAME_SERVER_SECONDS
            )
            return
        changed = None if told_version is None else self._topics.changed_since(told_version)
        if told_version is None or changed is None:
            self._begin_to_tell_all(peer)
            return
        if told_version == version:
            command = registration.heartbeat_command(header, self._in_epoch(version))
        else:
            since = self._in_epoch(told_version)
            register = RegisterBroker(*self._who, raymq_since=json.dumps(since.to_json()))
            there = {name: data for name, data in changed.items() if data is not None}
            deleted = [name for name, data in changed.items() if data is None]
            command = await _encoded(register, self._in_epoch(version), there, deleted)
        answer = await self._pool.request(peer.address, command, NAME_SERVER_SECONDS)
        if registration.must_register(answer):
            self._begin_to_tell_all(peer)
        else:
            peer.told = version

    def _begin_to_tell_all(self, peer: _Peer) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            peer.telling_all = None
            if not task.cancelled():
                task.exception()  # all that waited for it may have gone

        peer.telling_all = asyncio.get_running_loop().create_task(self._tell_all(peer))
        peer.telling_all.add_done_callback(ended)

    async def _tell_all(self, peer: _Peer) -> None:
        version, topics, telling = self._topics.version, self._topics.announced(), self._tellings
        header = RegisterBroker(
            *self._who, ha_server_addr=self._ha_address, raymq_max_message_bytes=self._max_message_bytes
        )
        command = await _encoded(header, self._in_epoch(version), topics)
        try:
            await self._pool.request(peer.address, command, patience_seconds(len(topics), peer.times_too_long))
        except Timeout:
            peer.times_too_long += 1
            raise
        peer.told, peer.times_too_long = version if telling == self._tellings else None, 0

    async def _leave(self, peer: _Peer) -> None:
        await self._pool.request(peer.address, UnregisterBroker(*self._who).command(), NAME_SERVER_SECONDS)


def patience_seconds(topics: int, times_too_long: int) -> float:
    """How long a full registration of so many topics is waited for, after so many that were not answered in time."""
    doubled = float(1 << min(times_too_long, 10))
    return min(_MOST_SECONDS, (NAME_SERVER_SECONDS + topics / _TOPICS_A_SECOND) * doubled)


async def _encoded(
    header: RegisterBroker, version: DataVersion, topics: Mapping[str, QueueData], deleted: Collection[str] = ()
) -> Command:
    """`registration.register_command`; between two parts of many topics others have their turn."""
    names = iter(topics)
    parts: list[bytes] = []
    while chunk := list(islice(names, _STEP_TOPICS)):
        parts.append(registration.topics_json({name: topics[name] for name in chunk}))
        if len(parts) > 1:
            await asyncio.sleep(0)
    return registration.register_command(header, version, parts, deleted)


class _Peer:
    """One name server, and which version it is known to know."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.told: DataVersion | None = None
        #: Why the last telling failed; None where it did not.
        self.trouble: str | None = None
        #: One telling at a time: each builds on the one before.
        self.lock = asyncio.Lock()
        #: While it is told everything.
        self.telling_all: asyncio.Task[None] | None = None
        #: How many times in a row it had not read everything when the patience for it ended.
        self.times_too_long = 0
