"""Connect a replica to its master, apply received frames and acknowledge them.

`ReplicationReceiver` decides which steps a frame requires.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from raymq.actors.broker.replica.frame_stream import FrameStream
from raymq.actors.broker.replica.replica_stream import ReplicaStream
from raymq.actors.broker.replication.epoch_map import EpochMap
from raymq.actors.broker.replication.frame_bodies import Hello
from raymq.actors.broker.replication.replication_frames import FrameKind, ReplicationFrame
from raymq.actors.broker.replication.replication_receiver import (
    BeginEpoch,
    BeginSnapshot,
    EndSnapshot,
    LoadSnapshotPart,
    ReplicationReceiver,
    Step,
    TruncateStream,
    WriteEvents,
    WriteLog,
)
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.actors.errors import ProtocolError
from raymq.actors.wire.tls import ReloadingContext
from raymq.storage.errors import StoreFull

#: A master sends at least twice a second; after this silence it counts as unreachable. Before GO_ON, and between parts
#: of a snapshot, it may have to read much, so the limit is longer.
SILENT_SECONDS: Final = 1.5
_SNAPSHOT_SECONDS: Final = 10.0
_CONNECT_SECONDS: Final = 2.0
_ACKNOWLEDGED: Final = (FrameKind.LOG, FrameKind.STATE, FrameKind.HEARTBEAT, FrameKind.EPOCH, FrameKind.GO_ON)

_log = logging.getLogger(__name__)


class ReplicaConnection:
    """One connection to the master of one epoch. Used on the broker's loop.

    A slow step runs on another thread; the master sends nothing meanwhile, and a frame that arrives all the same ends
    the connection.

    Attributes:
        epoch: of the master.
        is_following: the master has answered GO_ON.
        is_broken: the store has to be reopened.
        master_end: where the master's log ends, as far as it has reported.
        trouble: what has ended the connection; empty: nothing.
    """

    def __init__(
        self,
        stream: ReplicaStream,
        epoch: int,
        hello: Callable[[], Hello],
        fenced: Callable[[], int],
        *,
        flushes: bool,
    ) -> None:
        """Create a connection; `connect` opens it.

        `hello` returns the replica's current HELLO. `fenced` returns the epoch below which no master is followed.
        `flushes`: only data on disk are acknowledged.
        """
        self.epoch = epoch
        self.is_following = self.is_broken = False
        self.master_end = 0
        self.trouble = ""
        self._stream = stream
        self._hello = hello
        self._fenced = fenced
        self._flushes = flushes
        self._follower = ReplicationReceiver(epoch, stream.extent, stream.confirmed)
        self._frames = FrameStream(self._take, self._lost)
        self._loop = asyncio.get_running_loop()
        self._working: asyncio.Task[None] | None = None
        self._syncing: asyncio.Task[None] | None = None
        self._unsynced = False
        #: The position acknowledged in the middle of a frame's steps; None: nothing.
        self._acknowledged: StreamPosition | None = None
        self._snapshot_epochs = EpochMap()
        self._tables_of = 0
        self._closed = False

    async def connect(self, address: str, tls: ReloadingContext | None) -> None:
        """Connect and send HELLO.

        Raises:
            OSError, TimeoutError: there is no connection.
        """
        host, _, port = address.rpartition(":")
        async with asyncio.timeout(_CONNECT_SECONDS):
            await self._loop.create_connection(
                lambda: self._frames,
                host.strip("[]"),
                int(port),
                ssl=None if tls is None else tls.now(),
            )
        if self._closed:
            self._frames.abort()
            return
        self._stream.begin_connection()
        self._say_hello()

    @property
    def is_open(self) -> bool:
        """Return True while the connection is usable.

        It is while the master has sent something recently, or a step is running here.
        """
        if self._closed or not self._frames.is_open:
            return False
        patience = SILENT_SECONDS if self.is_following else _SNAPSHOT_SECONDS
        return self._working is not None or self._loop.time() - self._frames.received_at < patience

    async def close(self, reason: str = "") -> None:
        """End the connection, and wait for a running step."""
        self._closed = True
        self._frames.abort(reason)
        for task in (self._working, self._syncing):
            if task is not None:
                await asyncio.wait([task])

    def abort(self, reason: str) -> None:
        """Accept nothing more from this master, from now on."""
        self._closed = True
        self._frames.abort(reason)

    # -- frames

    def _take(self, frame: ReplicationFrame) -> None:
        if self._closed:
            return
        if self._working is not None:
            raise ProtocolError(f"received {frame.kind.name} while a step was under way")
        steps = self._follower.receive(frame, self._fenced())
        self.master_end = max(self.master_end, frame.position.offset)
        self._acknowledged = None
        try:
            for step in steps:
                self._do(step)
        except Exception as error:
            # The next connection starts from what was applied.
            self.is_broken = not isinstance(error, StoreFull)
            self.trouble = f"{type(error).__name__}: {error}"
            raise
        if self._working is None:
            self._done(frame.kind in _ACKNOWLEDGED)

    def _done(self, acknowledges: bool) -> None:
        """Confirm and acknowledge after all steps of a frame are done."""
        end = self._stream.end
        self._stream.confirm(self._follower.confirmed.meet(end))
        if acknowledges:
            self.is_following = True
            if self._acknowledged is None or self._acknowledged != end:
                self._acknowledge(end)

    def _do(self, step: Step) -> None:
        stream = self._stream
        if isinstance(step, WriteLog):
            stream.write_log(step.offset, step.content, self._written)
        elif isinstance(step, WriteEvents):
            stream.write_events(step.events)
            if stream.has_unsynced_deletions:  # else the next message of such a topic would wait for the disk, here
                self._work(stream.sync, lambda: self._done(acknowledges=True))
        elif isinstance(step, BeginEpoch):
            stream.begin_epoch(step.entry)
        elif isinstance(step, LoadSnapshotPart):
            stream.load(step.content)
        elif isinstance(step, TruncateStream):
            self.is_following = False
            self._work(lambda: stream.cut(step.position, step.epoch), self._say_hello)
        elif isinstance(step, BeginSnapshot):
            self._snapshot_epochs, self._tables_of = step.epochs, step.position.sequence
            self.is_following = False
            self._work(lambda: stream.begin_snapshot(step.position, keeps_log=step.keeps_log))
        elif isinstance(step, EndSnapshot):
            self._work(lambda: stream.end_snapshot(self._tables_of, self._snapshot_epochs), self._say_hello)

    def _work(self, call: Callable[[], None], then: Callable[[], None] = lambda: None) -> None:
        """Run a slow `call` on another thread, then `then`; receive nothing meanwhile."""
        self._frames.pause()

        async def work() -> None:
            try:
                await self._synced()
                await asyncio.to_thread(call)
            except Exception as error:  # noqa: BLE001 - the next connection starts from the replica's state
                _log.warning("a step that the master asked for failed: %s: %s", type(error).__name__, error)
                self.is_broken = True
                self.trouble = f"{type(error).__name__}: {error}"
                self.abort(self.trouble)
            finally:
                self._working = None
            if not self._closed:
                then()
                self._frames.resume()

        self._working = self._loop.create_task(work())

    def _say_hello(self) -> None:
        self._follower.end = self._stream.end
        self._frames.send(self._follower.hello(self._hello()))

    def _lost(self, reason: str) -> None:
        self.trouble = self.trouble or reason
        self._closed = True

    # -- acknowledging

    def _written(self) -> None:
        """Acknowledge log data at once, before their further processing here."""
        end = self._stream.end
        if not self._flushes:
            self._acknowledged = end
            self._acknowledge(end)

    def _acknowledge(self, end: StreamPosition) -> None:
        if not self._flushes:
            self._frames.send(self._follower.acknowledgement(end))
            return
        self._unsynced = True
        if self._syncing is None:
            self._syncing = self._loop.create_task(self._sync_and_acknowledge())

    async def _sync_and_acknowledge(self) -> None:
        try:
            while self._unsynced and not self._closed:
                self._unsynced = False
                end = self._stream.end
                await asyncio.to_thread(self._stream.sync)
                self._frames.send(self._follower.acknowledgement(end))
        except Exception as error:  # noqa: BLE001 - nothing was acknowledged
            self.is_broken = True
            self.trouble = f"{type(error).__name__}: {error}"
            self.abort(self.trouble)
        finally:
            self._syncing = None

    async def _synced(self) -> None:
        """Wait for a running sync, so that no other thread uses the store."""
        if self._syncing is not None:
            await asyncio.wait([self._syncing])
