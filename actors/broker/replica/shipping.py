"""The master's end of the replicas' connections: who connects, what is shipped to whom, and what they have."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Final, Protocol

from raymq.actors.broker.replica.frame_stream import FrameStream
from raymq.actors.broker.replication.claims import connection_refusal
from raymq.actors.broker.replication.feeding import Feeder, ShipLog
from raymq.actors.broker.replication.frame_bodies import Hello, read_hello
from raymq.actors.broker.replication.frames import FrameKind, ReplicationFrame
from raymq.actors.broker.replication.in_sync import InSyncSet
from raymq.actors.broker.replication.positions import BEGIN, StreamPosition
from raymq.actors.broker.replication.reconciling import GoOn, StreamExtent, TakeSnapshot
from raymq.actors.errors import InvalidInput, ProtocolError, RayMQError
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.wire.stepwise import stepwise
from raymq.storage import directory_format
from raymq.storage.errors import MessageExpired
from raymq.storage.log.shipping import LogBytes
from raymq.storage.state import queue_ends
from raymq.storage.state.recorder import StateRecorder
from raymq.storage.steps import Steps
from raymq.storage.version import VERSION

#: Of the log, in one frame.
_CHUNK_BYTES: Final = 1 << 20
#: So many frames to one replica before others have their turn.
_FRAMES_A_TURN: Final = 8
#: Who has connected and says nothing for so long is no replica.
_HELLO_SECONDS: Final = 5.0
#: A replica answers what it is sent at once, or within the time that a sync of its disk takes.
_SILENT_SECONDS: Final = 15.0
#: How often it is looked whether a replica that takes a snapshot is out of the set.
_LEAVING_SECONDS: Final = 0.05
#: So many connections at a time, those that have said nothing yet included.
_MOST_CONNECTIONS: Final = 128

_log = logging.getLogger(__name__)


class ShippingOffice(Protocol):
    """What connections need of their master's office."""

    cluster: str
    name: str
    epoch: int
    in_sync: InSyncSet
    recorder: StateRecorder

    @property
    def state(self) -> GroupState:
        """The register's value as far as it is known."""

    @property
    def extent(self) -> StreamExtent:
        """What there is to be shipped."""

    def log_bytes(self, begin: int, end: int) -> LogBytes:
        """As `Store.log_bytes`."""

    def expired_ends(self, log_min: int) -> Steps[dict[str, dict[int, int]]]:
        """As `Store.expired_ends`."""

    def look(self) -> StreamPosition:
        """Something was acknowledged; where the stream ends."""

    def learn(self) -> None:
        """Somebody connects whom the register may know by now."""


class Shipping:
    """All connections of one office. Used on the broker's loop; `over` ends it."""

    def __init__(self, group: ShippingOffice) -> None:
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._connections: set[_Connection] = set()
        self._count = 0
        self._over = False

    def accept(self) -> FrameStream:
        """The protocol of a connection that is being made."""
        self._count += 1
        connection = _Connection(self._group, self._count, self._connections)
        if self._over or len(self._connections) > _MOST_CONNECTIONS:
            connection.refuse("not the master, or too many connections")
        return connection.frames

    def pump(self, end: StreamPosition) -> None:
        """Ship what there is, up to `end`."""
        for connection in list(self._connections):
            connection.ship(end)

    def tick(self, *, heartbeat: bool) -> None:
        """A few times a second: have silent connections end, and say where the stream ends."""
        for connection in list(self._connections):
            connection.tick(heartbeat=heartbeat)
        needed = [each.needs for each in self._connections if each.needs is not None]
        self._group.recorder.hold(min(needed, default=None))

    def known(self, nonces: dict[int, str]) -> None:
        """These are the processes that are registered: connections of others end."""
        for connection in list(self._connections):
            hello = connection.hello
            if hello is not None and hello.nonce != nonces.get(hello.replica):
                connection.frames.abort("another process is registered for this replica")

    def connected(self) -> frozenset[int]:
        """The replicas that follow."""
        return frozenset(each.hello.replica for each in self._connections if each.hello is not None)

    def over(self) -> None:
        """Close all connections, and take no more."""
        self._over = True
        for connection in list(self._connections):
            connection.end()


class _Connection:
    """One of them, from its first byte on."""

    def __init__(self, group: ShippingOffice, number: int, all_: set[_Connection]) -> None:
        self._group = group
        self._number = number
        self._all = all_
        self._refusal = ""
        self._loop = asyncio.get_running_loop()
        self.frames = FrameStream(self._take, self._lost, on_made=self._made, on_room=self.pump)
        #: While a snapshot is taken the master's own beginning is where that is.
        self._tables_at: int | None = None
        self._feeder = Feeder(group.epoch, self._extent, group.recorder.after, lambda: group.in_sync.confirmed)
        self._snapshot: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._pumping = False

    @property
    def hello(self) -> Hello | None:
        """Who it is; None before it has said so."""
        return self._feeder.hello

    @property
    def needs(self) -> int | None:
        """From which change of state on it needs them."""
        is_waiting = self._snapshot is not None and self._tables_at is None
        return None if is_waiting else self._feeder.needs_state_from

    def refuse(self, reason: str) -> None:
        """Close it as soon as it is there."""
        self._refusal = reason

    def end(self) -> None:
        """Close it."""
        self.frames.abort("the master leaves office")

    def tick(self, *, heartbeat: bool) -> None:
        """See `Shipping.tick`."""
        if self.hello is None:
            if self._loop.time() - self.frames.heard_at > _HELLO_SECONDS:
                self.frames.abort("no HELLO")
        elif self._feeder.position is not None:
            if self._loop.time() - self.frames.heard_at > _SILENT_SECONDS:
                self.frames.abort("silent")
                return
            self.pump()
            if heartbeat and self.frames.has_room:
                self.frames.send(self._feeder.heartbeat())

    def pump(self) -> None:
        """Ship what there is and what there is room for, and go on behind the others."""
        self.ship(self._group.look())  # nobody acknowledges what the master does not know to have

    def ship(self, end: StreamPosition) -> None:
        """`pump` for who has just looked, and found that the stream ends at `end`."""
        self._room.set()
        self._pumping = False
        feeder, group = self._feeder, self._group
        try:
            for _ in range(_FRAMES_A_TURN):
                if not self.frames.has_room or feeder.has_shipped(end):
                    return
                shipment = feeder.next_shipment(_CHUNK_BYTES)
                if shipment is None:
                    return
                if isinstance(shipment, ShipLog):
                    with group.log_bytes(shipment.start, shipment.end) as found:
                        self.frames.send(feeder.frame_of(shipment, found.view))
                else:
                    self.frames.send(feeder.frame_of(shipment))
        except (ProtocolError, MessageExpired, InvalidInput) as error:
            # What it still needs is gone, or something is shipped that is not there: it says HELLO anew.
            self.frames.abort(str(error))
            return
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self.pump)

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
            _log.info("%s: replica %d is gone: %s", self._group.name, self.hello.replica, reason)

    def _take(self, frame: ReplicationFrame) -> None:
        if frame.epoch != self._group.epoch:
            raise ProtocolError(f"a frame of epoch {frame.epoch}, and this master's is {self._group.epoch}")
        if frame.kind is FrameKind.ACK:
            if self.hello is None:
                raise ProtocolError("an ACK before a HELLO")
            if self._group.in_sync.acknowledged(self.hello.replica, self._number, frame.position):
                self._group.look()
        elif frame.kind is FrameKind.HELLO:
            self._welcome(read_hello(frame.body), frame.position)
        else:
            raise ProtocolError(f"a {frame.kind.name} of a replica")

    def _welcome(self, hello: Hello, end: StreamPosition) -> None:
        group = self._group
        if self._snapshot is not None:
            raise ProtocolError("a HELLO in the middle of a snapshot")
        if (hello.cluster, hello.group) != (group.cluster, group.name):
            self._refuse(f"this is {group.name} of {group.cluster}, not {hello.group} of {hello.cluster}")
        known = hello.known_format or directory_format.BEFORE_THE_FILE
        if known < directory_format.CURRENT:
            self._refuse(
                f"replica {hello.replica} (RayMQ {hello.release or 'that tells no version'}) knows formats of state up "
                f"to {known}; this master (RayMQ {VERSION}) writes format {directory_format.CURRENT}: "
                "upgrade the RayMQ of the replica, and start it again"
            )
        refusal = connection_refusal(group.state, hello.replica, hello.identity, hello.nonce)
        if refusal is not None:
            group.learn()
            self._refuse(refusal)
        self._tables_at = None
        verdict, answer = self._feeder.welcome(hello, end)
        _log.info("%s: replica %d ends at %s: %s", group.name, hello.replica, end, verdict)
        if isinstance(verdict, TakeSnapshot):
            self._snapshot = self._loop.create_task(self._send_snapshot(hello, end))
            return
        self.frames.send(answer)
        if isinstance(verdict, GoOn):
            if group.in_sync.connected(hello.replica, self._number, verdict.position, hello.nonce):
                group.look()
            self.pump()

    def _refuse(self, reason: str) -> None:
        self.frames.send(ReplicationFrame(FrameKind.REFUSED, self._group.epoch, body=reason.encode()[:1000]))
        self.frames.close(reason)
        raise ProtocolError(reason)

    async def _send_snapshot(self, hello: Hello, end: StreamPosition) -> None:
        """The tables as they are now, in parts; the replica says HELLO again behind them.

        It drops its state for them, and without it nobody could be elected with its log: it leaves the set before.
        """
        snapshot = None
        in_sync = self._group.in_sync
        try:
            in_sync.gives_up(hello.replica)
            while hello.replica in in_sync.counted:
                await asyncio.sleep(_LEAVING_SECONDS)
                if not self.frames.is_open:
                    return
            snapshot = await asyncio.to_thread(self._group.recorder.snapshot)
            self._tables_at = snapshot.sequence
            verdict, answer = self._feeder.welcome(hello, end)
            if not isinstance(verdict, TakeSnapshot):
                raise ProtocolError(f"no snapshot any more: {verdict}")
            self.frames.send(answer)
            # What is gone where the replica's log begins, which may keep less than there is here; after it was said
            # where the one begins that is shipped.
            ends = await stepwise(self._group.expired_ends(hello.begin.offset if verdict.keeps_log else 0))
            parts = itertools.chain(snapshot.parts(), queue_ends.parts(ends))
            while (part := await asyncio.to_thread(next, parts, None)) is not None:
                self.frames.send(ReplicationFrame(FrameKind.TABLES, self._group.epoch, BEGIN, BEGIN, part))
                while self.frames.is_open and not self.frames.has_room:
                    self._room.clear()
                    await self._room.wait()
                if not self.frames.is_open:
                    return
            self.frames.send(ReplicationFrame(FrameKind.SNAPSHOT_END, self._group.epoch))
            self._snapshot = None
        except (RayMQError, OSError) as error:  # a medium that cannot be read, too: the replica asks anew
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
