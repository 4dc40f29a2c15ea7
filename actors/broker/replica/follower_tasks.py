"""Run the periodic tasks of a broker of a group while it is not master."""

from __future__ import annotations

import asyncio
from typing import Final

from raymq.actors.broker.replica.replica_status import ReplicaState
from raymq.actors.broker.replica.replica_stream import ReplicaStream
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.actors.wire.commands.replication_commands import read_replica_status, replica_status_command
from raymq.actors.wire.connection_pool import ConnectionPool

SYNC_SECONDS: Final = 1.0
RETENTION_SECONDS: Final = 10.0
TIMERS_SECONDS: Final = 0.2
TIMER_CHECKPOINT_SECONDS: Final = 2.0
#: The pause between two steps of indexing timers when there are more.
_STEP_SECONDS: Final = 0.001
_ASK_SECONDS: Final = 1.0


class FollowerTasks:
    """The periodic tasks of one replica. Used on the broker's loop."""

    def __init__(self, member: ReplicaState, pool: ConnectionPool, roles: asyncio.Lock) -> None:
        """Create the tasks; `roles` is the lock held while the role changes."""
        self._member = member
        self._pool = pool
        self._roles = roles

    async def sync(self) -> None:
        """Bring changed state to disk."""
        stream = self._member.stream
        if stream is not None and not self._member.role.is_leading:
            await asyncio.to_thread(stream.store.sync_state)

    async def index_timers(self) -> float | None:
        """Index timers for one step; return the seconds until the next one."""
        stream = self._free_stream
        return None if stream is None or stream.timers.follow() else _STEP_SECONDS

    async def checkpoint_timers(self) -> None:
        """Write a checkpoint of the timer log."""
        stream = self._free_stream
        if stream is not None and (write := stream.timers.checkpoint()) is not None:
            await asyncio.to_thread(write)

    @property
    def _free_stream(self) -> ReplicaStream | None:
        """Return the stream unless another thread may use its store before the next `await`.

        While a slow step of the connection or of a change of the role is under way, the connection does not follow.
        """
        connection = self._member.connection
        return self._member.stream if connection is not None and connection.is_following else None

    async def retain(self) -> None:
        """Delete old log files, except those that the master still has.

        The master deletes a file only when no message in it is still waiting, by changes that are confirmed. This
        replica must have these changes, too, before it deletes the file. A replica that is catching up receives them
        after the log data that it lacks; its disk may have no space for that data until the old files are deleted.
        """
        member = self._member
        state, stream = member.state, member.stream
        if state is None or state.master is None or member.connection is None or not member.connection.is_following:
            return
        address = state.replicas[state.master].address
        answer = await self._pool.request(address, replica_status_command(), _ASK_SECONDS)
        status = read_replica_status(answer)
        async with self._roles:
            if (
                stream is None
                or stream is not member.stream
                or member.connection is None
                or not member.connection.is_following
            ):
                return
            is_late = member.number not in state.in_sync  # it is elected only if messages are lost anyway
            if stream.end.covers(StreamPosition(*status.confirmed)) or (is_late and stream.is_disk_low):
                stream.retain(status.begin[0])
