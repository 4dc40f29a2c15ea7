"""The master's side of one connection to a replica: what to answer, and what to ship next. Decisions only.

A `Feeder` lives as long as its connection, and as the epoch of its master: with a new epoch all connections are closed
and made anew, so that none goes on in a former one. Log bytes and state frames go out in the order in which the master
made them, and nothing goes across the end of an epoch without saying so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.frame_bodies import (
    Hello,
    encode_epochs,
    encode_number,
    encode_snapshot,
    encode_states,
)
from raymq.actors.broker.replication.frames import MOST_BODY, FrameKind, ReplicationFrame
from raymq.actors.broker.replication.positions import StreamPosition
from raymq.actors.broker.replication.reconciling import (
    CutTo,
    GoOn,
    StreamExtent,
    Verdict,
    reconcile,
)
from raymq.actors.errors import ProtocolError
from raymq.storage.errors import InvalidInput
from raymq.storage.state.changes import StateChange

#: So much of the log goes out in one frame, in bytes.
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ShipLog:
    """The log's bytes from `start` to `end`; the shell takes them from the mapping as they lie."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ShipStates:
    """These state frames."""

    frames: Sequence[StateChange]


@dataclass(frozen=True, slots=True)
class ShipEpoch:
    """What follows is of a newer epoch."""

    entry: EpochStart


Shipment = ShipLog | ShipStates | ShipEpoch


class Feeder:
    """One connection of a replica, on the master. Belongs to the broker's loop.

    Attributes:
        position: what has been shipped; None before the replica was told to go on.
        hello: who the replica is; None before it has said so.
    """

    def __init__(
        self,
        epoch: int,
        extent: Callable[[], StreamExtent],
        states: Callable[[int], Sequence[StateChange]],
        confirmed: Callable[[], StreamPosition],
    ) -> None:
        """Of the master of `epoch`.

        Args:
            extent: what the master has now.
            states: its state frames behind a number; InvalidInput where some are folded.
            confirmed: what is confirmed now; each frame says it.
        """
        self._epoch = epoch
        self._extent = extent
        self._states = states
        self._confirmed = confirmed
        self.position: StreamPosition | None = None
        self.hello: Hello | None = None
        self._shipped_epoch = 0
        self._tables_at: int | None = None

    def welcome(self, hello: Hello, end: StreamPosition) -> tuple[Verdict, ReplicationFrame]:
        """The verdict on a replica that has said HELLO, and the frame that tells it.

        After GO_ON `next_shipment` begins. A snapshot's tables are the shell's to send behind its frame, SNAPSHOT_END
        last; the replica says HELLO again after it, as after a cut.

        Raises:
            ProtocolError: its extent makes no sense.
        """
        if not end.covers(hello.begin):
            raise ProtocolError(f"replica {hello.replica} ends at {end}, before it begins at {hello.begin}")
        self.hello, self.position = hello, None
        extent = self._extent()
        self._tables_at = None
        verdict = reconcile(extent, StreamExtent(hello.epochs, hello.begin, end))
        if isinstance(verdict, GoOn):
            self.position, self._shipped_epoch = verdict.position, verdict.epoch
            return verdict, self._frame(FrameKind.GO_ON, verdict.position, encode_number(verdict.epoch))
        if isinstance(verdict, CutTo):
            return verdict, self._frame(FrameKind.CUT, verdict.position, encode_number(verdict.epoch))
        epochs = EpochMap(entry for entry in extent.epochs if entry.epoch <= verdict.epoch)
        self._tables_at = verdict.position.sequence
        body = encode_snapshot(epochs, keeps_log=verdict.keeps_log)
        return verdict, self._frame(FrameKind.SNAPSHOT, verdict.position, body)

    @property
    def needs_state_from(self) -> int | None:
        """The master folds no frame behind this number while the connection lasts; None: it needs none.

        Without that a replica that takes longer for the log than the master for its next folding would get one
        snapshot after the other. One that keeps the journal from being folded for too long is disconnected.
        """
        return self._tables_at if self.position is None else self.position.sequence

    def has_shipped(self, end: StreamPosition) -> bool:
        """Whether nothing is left to ship of what the master has, which ends at `end`."""
        return self.position == end and self._shipped_epoch == self._epoch

    def next_shipment(self, most_bytes: int = CHUNK_BYTES) -> Shipment | None:
        """What to ship now; None: the replica was sent all that there is, or waits for no stream.

        Raises:
            ProtocolError: state that it still needs was folded meanwhile: close, it gets a snapshot when it comes back.
        """
        position = self.position
        if position is None:
            return None
        extent = self._extent()
        entry = extent.epochs.after(self._shipped_epoch)
        if entry is not None and position.covers(entry.start):
            return ShipEpoch(entry)
        bound = extent.end if entry is None else entry.start
        try:
            pending = self._states(position.sequence)[: max(bound.sequence - position.sequence, 0)]
        except InvalidInput as error:
            raise ProtocolError(f"the state behind {position.sequence} is folded") from error
        due = [frame for frame in pending[:1024] if frame.log_offset <= position.offset]
        if due:
            return ShipStates(_fitting(due, most_bytes))
        log_bound = min(bound.offset, pending[0].log_offset) if pending else bound.offset
        if position.offset < log_bound:
            return ShipLog(position.offset, min(log_bound, position.offset + most_bytes))
        return None

    def frame_of(self, shipment: Shipment, log: bytes | memoryview = b"") -> ReplicationFrame:
        """The frame of a shipment, of which `log` are the bytes if it is some; it counts as shipped with this call.

        `log` may be shorter than the shipment: the rest comes with the next one.
        """
        assert self.position is not None
        position = self.position
        if isinstance(shipment, ShipEpoch):
            self._shipped_epoch = shipment.entry.epoch
            return self._frame(FrameKind.EPOCH, shipment.entry.start, encode_epochs([shipment.entry]))
        if isinstance(shipment, ShipStates):
            first = shipment.frames[0].sequence
            self.position = position._replace(sequence=shipment.frames[-1].sequence)
            return self._frame(FrameKind.STATE, position._replace(sequence=first), encode_states(shipment.frames))
        self.position = StreamPosition(position.offset + len(log), position.sequence)
        return self._frame(FrameKind.LOG, position, log)

    def heartbeat(self) -> ReplicationFrame:
        """What to send when there is nothing to ship: the replica answers, and learns what is confirmed."""
        return self._frame(FrameKind.HEARTBEAT, self._extent().end, b"")

    def _frame(self, kind: FrameKind, position: StreamPosition, body: bytes | memoryview) -> ReplicationFrame:
        return ReplicationFrame(kind, self._epoch, position, self._confirmed(), body)


def _fitting(frames: Sequence[StateChange], most_bytes: int) -> Sequence[StateChange]:
    """As many of the frames as fit, at least one."""
    most = min(most_bytes, MOST_BODY[FrameKind.STATE])
    total = 0
    for number, frame in enumerate(frames):
        total += len(frame.payload) + 12
        if total > most and number:
            return frames[:number]
    return frames
