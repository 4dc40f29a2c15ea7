"""A broker's side of the name servers: it registers with each, and says every second that it lives.

All topics are told once; after that a heartbeat carries only the version of the topic table, and a change only what
changed. A name server that knows another version answers so, and is told everything again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from raymq.actors.protocol import MASTER_ID, QueueData
from raymq.actors.wire import route
from raymq.actors.wire.connection import ConnectionPool
from raymq.actors.wire.headers.route import QueryDataVersion, RegisterBroker, UnregisterBroker
from raymq.storage.json_file import DataVersion

#: A name server that has not answered by then learns it from a later heartbeat.
NAME_SERVER_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Registration:
    """One broker's registrations with all name servers. Used on the loop of its pool."""

    def __init__(
        self,
        pool: ConnectionPool,
        name_servers: Sequence[str],
        cluster: str,
        broker: str,
        address: str,
        topics: Callable[[], tuple[DataVersion, Mapping[str, QueueData]]],
    ) -> None:
        """`topics` gives the broker's topic table and its version; a table that was given never changes."""
        self._pool = pool
        self._who = (cluster, broker, MASTER_ID, address)
        self._topics = topics
        self._peers = [_Peer(name_server) for name_server in name_servers]

    @property
    def troubles(self) -> dict[str, str]:
        """Why this broker is not in the routes of a name server, by its address; empty where all have it."""
        return {peer.address: peer.trouble or "no answer yet" for peer in self._peers if peer.told is None}

    async def announce(self) -> None:
        """Tell every name server what is true now; returns when each has answered, or had its time."""
        await asyncio.gather(*(self._within_time(peer, self._tell) for peer in self._peers))

    async def leave(self) -> None:
        """Leave the routes of every name server."""
        await asyncio.gather(*(self._within_time(peer, self._leave) for peer in self._peers))

    async def _within_time(self, peer: _Peer, tell: Callable[[_Peer], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(NAME_SERVER_SECONDS):
                await tell(peer)
        except Exception as error:  # noqa: BLE001 - whatever one name server causes is not that of the others
            trouble = str(error) or f"no answer within {NAME_SERVER_SECONDS:g} s"
            level = logging.DEBUG if trouble == peer.trouble else logging.WARNING
            _log.log(level, "not registered with name server %s: %s", peer.address, trouble)
            peer.trouble = trouble
        else:
            peer.trouble = None

    async def _tell(self, peer: _Peer) -> None:
        async with peer.lock:
            version, topics = self._topics()
            self._pool.retry_now(peer.address)  # one that comes back must learn of this broker within a heartbeat
            if peer.told is None:
                await self._tell_all(peer, version, topics)
                return
            told_version, told_topics = peer.told
            if told_version == version:
                command = route.heartbeat_command(QueryDataVersion(*self._who), version)
            else:
                changed = {name: data for name, data in topics.items() if told_topics.get(name) != data}
                header = RegisterBroker(*self._who, raymq_since=json.dumps(told_version.to_json()))
                command = route.register_command(header, version, changed, told_topics.keys() - topics.keys())
            answer = await self._pool.request(peer.address, command, NAME_SERVER_SECONDS)
            if route.must_register(answer):
                await self._tell_all(peer, version, topics)
            else:
                peer.told = version, topics

    async def _tell_all(self, peer: _Peer, version: DataVersion, topics: Mapping[str, QueueData]) -> None:
        command = route.register_command(RegisterBroker(*self._who), version, topics)
        await self._pool.request(peer.address, command, NAME_SERVER_SECONDS)
        peer.told = version, topics

    async def _leave(self, peer: _Peer) -> None:
        await self._pool.request(peer.address, UnregisterBroker(*self._who).command(), NAME_SERVER_SECONDS)


class _Peer:
    """One name server, and what it is known to know."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.told: tuple[DataVersion, Mapping[str, QueueData]] | None = None
        #: Why the last telling failed; None where it did not.
        self.trouble: str | None = None
        #: One telling at a time: each builds on the one before.
        self.lock = asyncio.Lock()
