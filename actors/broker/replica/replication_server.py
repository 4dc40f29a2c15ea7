"""Run the master's side of the replicas' connections.

It accepts or refuses replicas, ships the stream to them, and receives their acknowledgements.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Final, Protocol

from raymq.actors.broker.replica.frame_stream import FrameStream
from raymq.actors.broker.replication.frame_bodies import Hello, read_hello
from raymq.actors.broker.replication.in_sync_set import InSyncSet
from raymq.actors.broker.replication.reconciliation import ContinueFrom, InstallSnapshot, StreamExtent
from raymq.actors.broker.replication.replica_claims import connection_refusal
from raymq.actors.broker.replication.replication_frames import FrameKind, ReplicationFrame
from raymq.actors.broker.replication.replication_sender import ReplicationSender
from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition
from raymq.actors.errors import InvalidInput, ProtocolError, RayMQError
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.wire.stepwise_handlers import stepwise
from raymq.storage import directory_format, expired_queue_offsets
from raymq.storage.cooperative_steps import Steps
from raymq.storage.errors import MessageExpired
from raymq.storage.journal.replication_backlog import ReplicationBacklog
from raymq.storage.journal.state_journal import StateJournal
from raymq.storage.log.log_slice import LogSlice
from raymq.storage.version import VERSION

#: So many frames are sent to one replica in one step.
_FRAMES_A_TURN: Final = 8
#: A connection without HELLO is closed after this time.
_HELLO_SECONDS: Final = 5.0
#: A connection without an answer is closed after this time: a replica answers at once, or after a sync of its disk.
_SILENT_SECONDS: Final = 15.0
#: How often a snapshot checks whether its replica has left the in-sync set.
_LEAVING_SECONDS: Final = 0.05
#: The most connections at a time, including those without HELLO.
_MAX_CONNECTIONS: Final = 128

_log = logging.getLogger(__name__)


class ReplicationSource(Protocol):
    """The part of a master's leadership that its connections use."""

    cluster: str
    name: str
    epoch: int
    in_sync: InSyncSet
    journal: StateJournal

    @property
    def state(self) -> GroupState:
        """Return the register's value as far as it is known."""

    @property
    def extent(self) -> StreamExtent:
        """Return the part of the stream that can be shipped."""

    @property
    def backlog(self) -> ReplicationBacklog:
        """Return the newest events of the journal."""

    def log_slice(self, begin: int, end: int) -> LogSlice:
        """Return what `Store.log_slice` returns."""

    def expired_ends(self, log_min: int) -> Steps[dict[str, dict[int, int]]]:
        """Return what `Store.expired_ends` returns."""

    def advance(self) -> StreamPosition:
        """Record where the stream ends, raise the high watermark, and return that end."""

    def confirm(self) -> None:
        """Apply the high watermark, which an acknowledgement has raised."""

    def refresh_registered(self) -> None:
        """Read the register, because it may list the replica that connects."""


class ReplicationServer:
    """All replicas' connections of one leadership.

    It is used on the broker's loop; `close` ends it.
    """

    def __init__(self, group: ReplicationSource) -> None:
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._connections: set[_Connection] = set()
        self._count = 0
        self._over = False

    def accept(self) -> FrameStream:
        """Return the protocol of a new connection."""
        self._count += 1
        connection = _Connection(self._group, self._count, self._connections)
        if self._over or len(self._connections) > _MAX_CONNECTIONS:
            connection.refuse("not the master, or too many connections")
        return connection.frames

    def pump(self, end: StreamPosition) -> None:
        """Ship the stream up to `end` to all replicas."""
        for connection in list(self._connections):
            connection.ship(end)

    def tick(self, *, heartbeat: bool) -> None:
        """Close silent connections and send heartbeats; call it a few times a second."""
        for connection in list(self._connections):
            connection.tick(heartbeat=heartbeat)
        needed = [each.needs for each in self._connections if each.needs is not None]
        self._group.backlog.retain(min(needed, default=None))

    def known(self, nonces: dict[int, str]) -> None:
        """Close connections of processes that are not the registered ones."""
        for connection in list(self._connections):
            hello = connection.hello
            if hello is not None and hello.nonce != nonces.get(hello.replica):
                connection.frames.abort("another process is registered for this replica")

    def connected(self) -> frozenset[int]:
        """Return the replicas that are connected and have sent HELLO."""
        return frozenset(each.hello.replica for each in self._connections if each.hello is not None)

    def close(self) -> None:
        """Close all connections and accept no more."""
        self._over = True
        for connection in list(self._connections):
            connection.end()


class _Connection:
    """One connection of a replica, from its first byte on."""

    def __init__(self, group: ReplicationSource, number: int, all_: set[_Connection]) -> None:
        self._group = group
        self._number = number
        self._all = all_
        self._refusal = ""
        self._loop = asyncio.get_running_loop()
        self.frames = FrameStream(self._take, self._lost, on_made=self._made, on_room=self.pump)
        #: While a snapshot is sent, the master's state begins at the snapshot's sequence.
        self._tables_at: int | None = None
        self._feeder = ReplicationSender(
            group.epoch, self._extent, group.backlog.after, lambda: group.in_sync.confirmed
        )
        self._snapshot: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._pumping = False

    @property
    def hello(self) -> Hello | None:
        """Return the replica's HELLO, or None before it has arrived."""
        return self._feeder.hello

    @property
    def needs(self) -> int | None:
        """Return the sequence from which on the replica needs state changes, or None."""
        is_waiting = self._snapshot is not None and self._tables_at is None
        return None if is_waiting else self._feeder.needs_state_from

    def refuse(self, reason: str) -> None:
        """Refuse the connection as soon as it is made."""
        self._refusal = reason

    def end(self) -> None:
        """Close the connection."""
        self.frames.abort("the master steps down")

    def tick(self, *, heartbeat: bool) -> None:
        """Do `ReplicationServer.tick` for this connection."""
        if self.hello is None:
            if self._loop.time() - self.frames.received_at > _HELLO_SECONDS:
                self.frames.abort("no HELLO received in time")
        elif self._feeder.position is not None:
            if self._loop.time() - self.frames.received_at > _SILENT_SECONDS:
                self.frames.abort("silent")
                return
            self.pump()
            if heartbeat and self.frames.has_room:
                self.frames.send(self._feeder.heartbeat())

    def pump(self) -> None:
        """Ship as much as there is room for.

        If more is left, continue after other tasks.
        """
        self._pumping = False
        self._room.set()
        self.ship(self._group.advance())  # replicas must not acknowledge more than it has recorded

    def ship(self, end: StreamPosition) -> None:
        """Do `pump` for a caller that has just found that the stream ends at `end`."""
        frames = self.frames
        try:
            for _ in range(_FRAMES_A_TURN):
                frame = self._feeder.next_frame(end, self._log) if frames.has_room else None
                if frame is None:
                    return
                frames.send(frame)
        except (ProtocolError, MessageExpired, InvalidInput) as error:
            # The replica needs data that are deleted, or was sent data that do not exist: it reconnects with a new
            # HELLO.
            frames.abort(str(error))
            return
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self.pump)

    def _log(self, begin: int, end: int) -> memoryview:
        return self._group.log_slice(begin, end).view  # the view keeps the mapping alive

    # -- frames

    def _made(self) -> None:
        self._all.add(self)
        if self._refusal:
            self.frames.send(ReplicationFrame(FrameKind.REFUSED, self._group.epoch, body=self._refusal.encode()))
            self.frames.close()

    def _lost(self, reason: str) -> None:
        self._all.discard(self)
        self._room.set()
        if self._snapshot is not None:
            self._snapshot.cancel()
        if self.hello is not None:
            self._group.in_sync.disconnected(self.hello.replica, self._number)
            _log.info("%s: replica %d has disconnected: %s", self._group.name, self.hello.replica, reason)

    def _take(self, frame: ReplicationFrame) -> None:
        if frame.epoch != self._group.epoch:
            raise ProtocolError(
                f"received a frame of epoch {frame.epoch}, but this master has epoch {self._group.epoch}"
            )
        if frame.kind is FrameKind.ACK:
            if self.hello is None:
                raise ProtocolError("received ACK before HELLO")
            if self._group.in_sync.acknowledged(self.hello.replica, self._number, frame.position):
                self._group.confirm()
        elif frame.kind is FrameKind.HELLO:
            self._welcome(read_hello(frame.body), frame.position)
        else:
            raise ProtocolError(f"received {frame.kind.name} from a replica")

    def _welcome(self, hello: Hello, end: StreamPosition) -> None:
        group = self._group
        if self._snapshot is not None:
            raise ProtocolError("received HELLO during a snapshot")
        if (hello.cluster, hello.group) != (group.cluster, group.name):
            self._refuse(f"this is {group.name} of {group.cluster}, not {hello.group} of {hello.cluster}")
        known = hello.known_format or directory_format.UNVERSIONED_FORMAT
        if known < directory_format.CURRENT_FORMAT:
            self._refuse(
                f"replica {hello.replica} (RayMQ {hello.release or 'of unknown version'}) supports state formats up "
                f"to {known}; this master (RayMQ {VERSION}) writes format {directory_format.CURRENT_FORMAT}: "
                "upgrade the RayMQ of the replica, and start it again"
            )
        refusal = connection_refusal(group.state, hello.replica, hello.identity, hello.nonce)
        if refusal is not None:
            group.refresh_registered()
            self._refuse(refusal)
        self._tables_at = None
        verdict, answer = self._feeder.on_hello(hello, end)
        _log.info("%s: replica %d ends at %s: %s", group.name, hello.replica, end, verdict)
        if isinstance(verdict, InstallSnapshot):
            self._snapshot = self._loop.create_task(self._send_snapshot(hello, end))
            return
        self.frames.send(answer)
        if isinstance(verdict, ContinueFrom):
            if group.in_sync.connected(hello.replica, self._number, verdict.position, hello.nonce):
                group.advance()
            self.pump()

    def _refuse(self, reason: str) -> None:
        self.frames.send(ReplicationFrame(FrameKind.REFUSED, self._group.epoch, body=reason.encode()[:1000]))
        self.frames.close(reason)
        raise ProtocolError(reason)

    async def _send_snapshot(self, hello: Hello, end: StreamPosition) -> None:
        """Send a copy of the state journal; the replica's next HELLO follows.

        The replica drops its own state, and perhaps its log, so it leaves the in-sync set first.
        """
        snapshot = None
        in_sync = self._group.in_sync
        try:
            in_sync.reset_replica(hello.replica)
            while hello.replica in in_sync.required:
                await asyncio.sleep(_LEAVING_SECONDS)
                if not self.frames.is_open:
                    return
            snapshot = await asyncio.to_thread(self._group.journal.copy)
            self._tables_at = snapshot.sequence
            verdict, answer = self._feeder.on_hello(hello, end)
            if not isinstance(verdict, InstallSnapshot):
                raise ProtocolError(f"the replica needs no snapshot any more: {verdict}")
            self.frames.send(answer)
            # What is deleted where the replica's log begins: it may keep less than the master has. Only after the
            # answer, which fixes where the shipped stream begins.
            ends = await stepwise(self._group.expired_ends(hello.begin.offset if verdict.keeps_log else 0))
            parts = itertools.chain(snapshot.parts(), expired_queue_offsets.parts(ends))
            while (part := await asyncio.to_thread(next, parts, None)) is not None:
                self.frames.send(ReplicationFrame(FrameKind.TABLES, self._group.epoch, BEGIN, BEGIN, part.encode()))
                while self.frames.is_open and not self.frames.has_room:
                    self._room.clear()
                    await self._room.wait()
                if not self.frames.is_open:
                    return
            self.frames.send(ReplicationFrame(FrameKind.SNAPSHOT_END, self._group.epoch))
            self._snapshot = None
        except (RayMQError, OSError) as error:  # also an unreadable disk: the replica retries
            _log.warning("%s: a snapshot for replica %d failed: %s", self._group.name, hello.replica, error)
            self.frames.abort(str(error))
        finally:
            if snapshot is not None:
                snapshot.close()

    def _extent(self) -> StreamExtent:
        extent = self._group.extent
        if self._tables_at is None:
            return extent
        begin = extent.begin._replace(sequence=self._tables_at)
        return StreamExtent(extent.epochs, begin, extent.end)
