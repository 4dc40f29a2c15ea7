"""What a broker of a group does every few seconds while it is no master."""

from __future__ import annotations

import asyncio
from typing import Final

from raymq.actors.broker.replica.process import ReplicaProcess
from raymq.actors.broker.replication.positions import StreamPosition
from raymq.actors.wire.commands.replication import read_replica_status, replica_status_command
from raymq.actors.wire.connection import ConnectionPool

SYNC_SECONDS: Final = 1.0
RETENTION_SECONDS: Final = 10.0
_ASK_SECONDS: Final = 1.0


class FollowingDuties:
    """Used on the broker's loop."""

    def __init__(self, member: ReplicaProcess, pool: ConnectionPool, roles: asyncio.Lock) -> None:
        """`roles` is held while the role changes."""
        self._member = member
        self._pool = pool
        self._roles = roles

    async def sync(self) -> None:
        """Bring the state that has changed to disk."""
        stream = self._member.stream
        if stream is not None:
            await asyncio.to_thread(stream.states.sync)

    async def retain(self) -> None:
        """Let old log files go, but for those that the master still has.

        Nothing in those that it has not waits any more, for a reason that is confirmed; it has to be here, too. One
        that catches up gets it behind what it lacks, for which its disk may have no room until these files are gone.
        """
        member = self._member
        state, stream = member.state, member.stream
        if state is None or state.master is None or member.line is None or not member.line.is_following:
            return
        address = state.replicas[state.master].address
        answer = await self._pool.request(address, replica_status_command(), _ASK_SECONDS)
        status = read_replica_status(answer)
        async with self._roles:
            if stream is None or stream is not member.stream or member.line is None or not member.line.is_following:
                return
            is_late = member.number not in state.in_sync  # and is not elected, but where messages are lost anyway
            if stream.end.covers(StreamPosition(*status.confirmed)) or (is_late and stream.is_short_of_room):
                stream.retain(status.begin[0])
