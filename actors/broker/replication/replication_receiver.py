"""Decide on a replica which steps each frame of its master requires.

The caller carries out the steps in their order, each durably where that is required, and then sends `acknowledgement`.
An unexpected frame ends the connection; the HELLO of the next connection restores a consistent state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.frame_bodies import Hello, read_epoch, read_events, read_number, read_snapshot
from raymq.actors.broker.replication.reconciliation import StreamExtent
from raymq.actors.broker.replication.replication_frames import Buffer, FrameKind, ReplicationFrame
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.actors.errors import ProtocolError
from raymq.storage.journal.journal_event import JournalEvent


class WriteLog(NamedTuple):
    """A step: append these bytes of the log, which lie at `offset`.

    The records' own CRCs are checked before.
    """

    offset: int
    content: Buffer


@dataclass(frozen=True, slots=True)
class WriteEvents:
    """A step: append these events to the state journal and apply them."""

    events: Sequence[JournalEvent]


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """A step: append this epoch to the map and save it.

    It comes before the data of the epoch are written.
    """

    entry: EpochStart


@dataclass(frozen=True, slots=True)
class TruncateStream:
    """A step: cut log and state to `position`, and the epochs to `epoch`.

    All data derived from the removed part are cut, too: queues, index, timers. The cut is durable (zeroed and fsynced)
    before anything else is done. Then the caller sends HELLO again.
    """

    position: StreamPosition
    epoch: int


@dataclass(frozen=True, slots=True)
class BeginSnapshot:
    """A step: drop all state, durably; the tables that follow are of `position`.

    With `keeps_log` the log is cut to `position`, else it restarts there without its old content. The replica does not
    count as one until the end of the snapshot is saved: a start in between finds nothing.
    """

    position: StreamPosition
    epochs: EpochMap
    keeps_log: bool


@dataclass(frozen=True, slots=True)
class LoadSnapshotPart:
    """A step: load a part of a snapshot's tables."""

    content: Buffer


@dataclass(frozen=True, slots=True)
class EndSnapshot:
    """A step: the tables are complete: save them, durably, and send HELLO again.

    A snapshot that did not reach this step does not count.
    """


Step = WriteLog | WriteEvents | BeginEpoch | TruncateStream | BeginSnapshot | LoadSnapshotPart | EndSnapshot
_ANSWERS = (FrameKind.GO_ON, FrameKind.CUT, FrameKind.SNAPSHOT)
_STREAM = (FrameKind.EPOCH, FrameKind.LOG, FrameKind.STATE, FrameKind.HEARTBEAT)


class ReplicationReceiver:
    """One connection to the master of an epoch, on a replica.

    It belongs to the broker's loop.

    Attributes:
        end: where the stream ends here when all steps so far are done.
        confirmed: the part that is known to be confirmed, and present here; it never goes back.
    """

    def __init__(self, epoch: int, extent: StreamExtent, confirmed: StreamPosition) -> None:
        """Create a receiver.

        `epoch` is that of the connected master, `extent` the part of the stream present here, `confirmed` the part
        known to be confirmed.
        """
        self._epoch = epoch
        self._last_epoch = extent.epochs.last_epoch
        self.end = extent.end
        self.confirmed = confirmed.meet(extent.end)
        self._waits_for: tuple[FrameKind, ...] = _ANSWERS

    def hello(self, hello: Hello) -> ReplicationFrame:
        """Return the frame that begins the exchange, also after a truncation or a snapshot."""
        self._waits_for = _ANSWERS
        self._last_epoch = hello.epochs.last_epoch
        return ReplicationFrame(FrameKind.HELLO, self._epoch, self.end, self.confirmed, hello.encode())

    def acknowledgement(self, position: StreamPosition) -> ReplicationFrame:
        """Return the frame that acknowledges data as written, or with sync flush as on disk."""
        return ReplicationFrame(FrameKind.ACK, self._epoch, position.meet(self.end), self.confirmed)

    def receive(self, frame: ReplicationFrame, fenced: int) -> list[Step]:
        """Return the steps that a frame requires.

        Args:
            fenced: the epoch below which this replica accepts no master any more, now.

        Raises:
            ProtocolError: the frame is unexpected, or comes from a master of an earlier epoch; close the connection.
        """
        if frame.epoch != self._epoch or frame.epoch < fenced:
            raise ProtocolError(
                f"a frame of epoch {frame.epoch} in a connection of epoch {self._epoch}, fenced at {fenced}"
            )
        if frame.kind is FrameKind.REFUSED:
            raise ProtocolError(f"the master refuses: {bytes(frame.body).decode(errors='replace')}")
        if frame.kind not in self._waits_for:
            raise ProtocolError(
                f"received {frame.kind.name}, expected one of {[each.name for each in self._waits_for]}"
            )
        steps = self._steps(frame)
        self.confirmed = self.confirmed.join(frame.confirmed.meet(self.end))
        return steps

    def _steps(self, frame: ReplicationFrame) -> list[Step]:
        if frame.kind is FrameKind.LOG:
            return [self._log(frame)]
        if frame.kind is FrameKind.STATE:
            return [self._events(frame)]
        if frame.kind is FrameKind.EPOCH:
            return [self._begin_epoch(read_epoch(frame.body))]
        if frame.kind is FrameKind.GO_ON:
            if frame.position != self.end:
                raise ProtocolError(f"the master continues from {frame.position}, but the stream ends at {self.end}")
            self._waits_for = _STREAM
        elif frame.kind is FrameKind.CUT:
            return [self._cut(frame.position, read_number(frame.body))]
        elif frame.kind is FrameKind.SNAPSHOT:
            epochs, keeps_log = read_snapshot(frame.body)
            if keeps_log and frame.position.offset > self.end.offset:
                raise ProtocolError(f"the master keeps the log up to {frame.position}, but it ends at {self.end}")
            self.end = frame.position
            self.confirmed = self.confirmed.meet(frame.position)
            self._waits_for = (FrameKind.TABLES, FrameKind.SNAPSHOT_END)
            return [BeginSnapshot(frame.position, epochs, keeps_log)]
        elif frame.kind is FrameKind.TABLES:
            return [LoadSnapshotPart(frame.body)]
        elif frame.kind is FrameKind.SNAPSHOT_END:
            self._waits_for = ()
            return [EndSnapshot()]
        return []

    def _log(self, frame: ReplicationFrame) -> Step:
        if frame.position != self.end or not len(frame.body):
            raise ProtocolError(f"log bytes at {frame.position}, but the stream ends at {self.end}")
        self.end = StreamPosition(self.end.offset + len(frame.body), self.end.sequence)
        return WriteLog(frame.position.offset, frame.body)

    def _events(self, frame: ReplicationFrame) -> Step:
        events = read_events(frame)
        if events[0].sequence != self.end.sequence + 1:
            raise ProtocolError(f"event {events[0].sequence}, but the stream ends at {self.end}")
        if events[-1].log_offset > self.end.offset:
            raise ProtocolError(f"event {events[-1].sequence} refers to the log behind its end {self.end.offset}")
        self.end = self.end._replace(sequence=events[-1].sequence)
        return WriteEvents(events)

    def _begin_epoch(self, entry: EpochStart) -> Step:
        if entry.epoch <= self._last_epoch or entry.epoch > self._epoch or not self.end.covers(entry.start):
            raise ProtocolError(
                f"epoch {entry.epoch} from {entry.start} does not follow epoch {self._last_epoch} at {self.end}"
            )
        self._last_epoch = entry.epoch
        return BeginEpoch(entry)

    def _cut(self, position: StreamPosition, epoch: int) -> Step:
        if not self.end.covers(position):
            raise ProtocolError(f"the master cuts to {position}, but the stream ends at {self.end}")
        self.end = position
        self.confirmed = self.confirmed.meet(position)
        self._waits_for = ()
        return TruncateStream(position, epoch)
