"""The replica's side of one connection to its master: which frame means which step. Decisions only.

The shell does the steps in their order, each durably where it says so, and then sends `acknowledgement`. A frame that
does not fit ends the connection; the next HELLO puts everything right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.frame_bodies import Hello, read_epoch, read_number, read_snapshot, read_states
from raymq.actors.broker.replication.frames import Buffer, FrameKind, ReplicationFrame
from raymq.actors.broker.replication.positions import StreamPosition
from raymq.actors.broker.replication.reconciling import StreamExtent
from raymq.actors.errors import ProtocolError
from raymq.storage.state.changes import StateChange


class WriteLog(NamedTuple):
    """Append these bytes of the log, which lie at `offset`; the records' own CRCs are checked before."""

    offset: int
    content: Buffer


@dataclass(frozen=True, slots=True)
class WriteStates:
    """Append these state frames to the journal and apply them."""

    frames: Sequence[StateChange]


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """Append this epoch to the map and save it, before what follows is written."""

    entry: EpochStart


@dataclass(frozen=True, slots=True)
class CutStream:
    """Cut log and state to this place, the epochs to this one, and all that is made of them: queues, index, timers.

    It is durable (zeroed and fsynced) before anything else is done. Then the shell says HELLO anew.
    """

    position: StreamPosition
    epoch: int


@dataclass(frozen=True, slots=True)
class BeginSnapshot:
    """Drop all state, durably; the tables that follow are of this place.

    The log is cut to it if it `keeps_log`, else it begins there without what was. It does not count as a replica until
    the end of the snapshot is saved: a start in between finds nothing.
    """

    position: StreamPosition
    epochs: EpochMap
    keeps_log: bool


@dataclass(frozen=True, slots=True)
class LoadTables:
    """A part of the tables of a snapshot."""

    content: Buffer


@dataclass(frozen=True, slots=True)
class EndSnapshot:
    """The tables are whole: save them, durably, and say HELLO anew. A snapshot that did not get here does not count."""


Step = WriteLog | WriteStates | BeginEpoch | CutStream | BeginSnapshot | LoadTables | EndSnapshot
_ANSWERS = (FrameKind.GO_ON, FrameKind.CUT, FrameKind.SNAPSHOT)
_STREAM = (FrameKind.EPOCH, FrameKind.LOG, FrameKind.STATE, FrameKind.HEARTBEAT)


class Follower:
    """One connection to the master of an epoch, on a replica. Belongs to the broker's loop.

    Attributes:
        end: where the stream ends here when all steps so far are done.
        confirmed: what is known to be confirmed, and is here; it never goes back.
    """

    def __init__(self, epoch: int, extent: StreamExtent, confirmed: StreamPosition) -> None:
        """`epoch`: of the master that is spoken to. `extent`: what is here. `confirmed`: what is known to be."""
        self._epoch = epoch
        self._last_epoch = extent.epochs.last_epoch
        self.end = extent.end
        self.confirmed = confirmed.meet(extent.end)
        self._waits_for: tuple[FrameKind, ...] = _ANSWERS

    def hello(self, hello: Hello) -> ReplicationFrame:
        """The frame to begin with, and to send again after a cut or a snapshot, with what is here then."""
        self._waits_for = _ANSWERS
        self._last_epoch = hello.epochs.last_epoch
        return ReplicationFrame(FrameKind.HELLO, self._epoch, self.end, self.confirmed, hello.encode())

    def acknowledgement(self, position: StreamPosition) -> ReplicationFrame:
        """The frame that says what is here: written, or with sync flush on disk."""
        return ReplicationFrame(FrameKind.ACK, self._epoch, position.meet(self.end), self.confirmed)

    def receive(self, frame: ReplicationFrame, sealed: int) -> list[Step]:
        """What a frame asks for.

        Args:
            sealed: the epoch below which this replica accepts no master any more, now.

        Raises:
            ProtocolError: the frame does not fit, or comes of a master of a former epoch; close the connection.
        """
        if frame.epoch != self._epoch or frame.epoch < sealed:
            raise ProtocolError(f"a frame of epoch {frame.epoch}, in a connection of {self._epoch}, sealed to {sealed}")
        if frame.kind is FrameKind.REFUSED:
            raise ProtocolError(f"the master refuses: {bytes(frame.body).decode(errors='replace')}")
        if frame.kind not in self._waits_for:
            raise ProtocolError(f"a {frame.kind.name} where one of {[each.name for each in self._waits_for]} was due")
        steps = self._steps(frame)
        self.confirmed = self.confirmed.join(frame.confirmed.meet(self.end))
        return steps

    def _steps(self, frame: ReplicationFrame) -> list[Step]:
        if frame.kind is FrameKind.LOG:
            return [self._log(frame)]
        if frame.kind is FrameKind.STATE:
            return [self._states(frame)]
        if frame.kind is FrameKind.EPOCH:
            return [self._begin_epoch(read_epoch(frame.body))]
        if frame.kind is FrameKind.GO_ON:
            if frame.position != self.end:
                raise ProtocolError(f"told to go on from {frame.position}, and the stream ends at {self.end}")
            self._waits_for = _STREAM
        elif frame.kind is FrameKind.CUT:
            return [self._cut(frame.position, read_number(frame.body))]
        elif frame.kind is FrameKind.SNAPSHOT:
            epochs, keeps_log = read_snapshot(frame.body)
            if keeps_log and frame.position.offset > self.end.offset:
                raise ProtocolError(f"told to keep the log up to {frame.position}, and it ends at {self.end}")
            self.end = frame.position
            self.confirmed = self.confirmed.meet(frame.position)
            self._waits_for = (FrameKind.TABLES, FrameKind.SNAPSHOT_END)
            return [BeginSnapshot(frame.position, epochs, keeps_log)]
        elif frame.kind is FrameKind.TABLES:
            return [LoadTables(frame.body)]
        elif frame.kind is FrameKind.SNAPSHOT_END:
            self._waits_for = ()
            return [EndSnapshot()]
        return []

    def _log(self, frame: ReplicationFrame) -> Step:
        if frame.position != self.end or not len(frame.body):
            raise ProtocolError(f"log bytes at {frame.position}, and the stream ends at {self.end}")
        self.end = StreamPosition(self.end.offset + len(frame.body), self.end.sequence)
        return WriteLog(frame.position.offset, frame.body)

    def _states(self, frame: ReplicationFrame) -> Step:
        frames = read_states(frame)
        if frames[0].sequence != self.end.sequence + 1:
            raise ProtocolError(f"state frame {frames[0].sequence}, and the stream ends at {self.end}")
        if frames[-1].log_offset > self.end.offset:
            raise ProtocolError(f"state frame {frames[-1].sequence} speaks of a later log than {self.end.offset}")
        self.end = self.end._replace(sequence=frames[-1].sequence)
        return WriteStates(frames)

    def _begin_epoch(self, entry: EpochStart) -> Step:
        if entry.epoch <= self._last_epoch or entry.epoch > self._epoch or not self.end.covers(entry.start):
            raise ProtocolError(f"epoch {entry.epoch} from {entry.start}, after {self._last_epoch}, at {self.end}")
        self._last_epoch = entry.epoch
        return BeginEpoch(entry)

    def _cut(self, position: StreamPosition, epoch: int) -> Step:
        if not self.end.covers(position):
            raise ProtocolError(f"told to cut to {position}, and the stream ends at {self.end}")
        self.end = position
        self.confirmed = self.confirmed.meet(position)
        self._waits_for = ()
        return CutStream(position, epoch)
