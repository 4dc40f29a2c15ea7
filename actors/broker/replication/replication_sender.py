"""Decide on a master how to answer a replica, and what to ship next.

A `ReplicationSender` exists as long as its connection, and as long as the epoch of its master: with a new epoch all
connections are closed and made anew, so that none continues in an earlier one. Log bytes and events of the state
journal are sent in the order in which the master made them. An EPOCH frame separates the data of two epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.frame_bodies import (
    Hello,
    encode_epochs,
    encode_events,
    encode_number,
    encode_snapshot,
)
from raymq.actors.broker.replication.reconciliation import (
    ContinueFrom,
    ReconcileResult,
    StreamExtent,
    TruncateTo,
    reconcile,
)
from raymq.actors.broker.replication.replication_frames import MAX_BODY, FrameKind, ReplicationFrame
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.actors.errors import ProtocolError
from raymq.storage.errors import InvalidInput
from raymq.storage.journal.journal_event import JournalEvent

#: Bytes of the log in one frame.
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ShipLog:
    """A shipment of the log's bytes from `start` to `end`, sent directly from the mapping."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ShipEvents:
    """A shipment of these events of the state journal."""

    events: Sequence[JournalEvent]


@dataclass(frozen=True, slots=True)
class ShipEpoch:
    """A shipment that begins a newer epoch."""

    entry: EpochStart


Shipment = ShipLog | ShipEvents | ShipEpoch


class ReplicationSender:
    """One connection of a replica, on the master. Belongs to the broker's loop.

    Attributes:
        position: how far the stream has been shipped; None before GO_ON.
        hello: the replica's HELLO; None before it has arrived.
    """

    def __init__(
        self,
        epoch: int,
        extent: Callable[[], StreamExtent],
        events: Callable[[int], Sequence[JournalEvent]],
        confirmed: Callable[[], StreamPosition],
    ) -> None:
        """Create the sender of the master of `epoch`.

        Args:
            extent: returns the master's current extent.
            events: returns its next events after a number; raises InvalidInput if some of them were dropped.
            confirmed: returns the confirmed position, which each frame carries.
        """
        self._epoch = epoch
        self._extent = extent
        self._events = events
        self._confirmed = confirmed
        self.position: StreamPosition | None = None
        self.hello: Hello | None = None
        self._shipped_epoch = 0
        self._tables_at: int | None = None

    def on_hello(self, hello: Hello, end: StreamPosition) -> tuple[ReconcileResult, ReplicationFrame]:
        """Return the verdict on a replica that has sent HELLO, and its frame.

        After GO_ON `next_shipment` begins. After a SNAPSHOT frame the caller sends the tables, and SNAPSHOT_END last;
        the replica sends HELLO again after it, as after a CUT.

        Raises:
            ProtocolError: its extent makes no sense.
        """
        if end.offset < hello.begin.offset:
            raise ProtocolError(f"replica {hello.replica} ends at {end}, before it begins at {hello.begin}")
        self.hello, self.position = hello, None
        extent = self._extent()
        self._tables_at = None
        verdict = reconcile(extent, StreamExtent(hello.epochs, hello.begin, end))
        if isinstance(verdict, ContinueFrom):
            self.position, self._shipped_epoch = verdict.position, verdict.epoch
            return verdict, self._frame(FrameKind.GO_ON, verdict.position, encode_number(verdict.epoch))
        if isinstance(verdict, TruncateTo):
            return verdict, self._frame(FrameKind.CUT, verdict.position, encode_number(verdict.epoch))
        epochs = EpochMap(entry for entry in extent.epochs if entry.epoch <= verdict.epoch)
        self._tables_at = verdict.position.sequence
        body = encode_snapshot(epochs, keeps_log=verdict.keeps_log)
        return verdict, self._frame(FrameKind.SNAPSHOT, verdict.position, body)

    @property
    def needs_state_from(self) -> int | None:
        """Return the number after which the master must not drop events, or None.

        Otherwise a replica that takes longer for the log than the master takes until it drops the events would get
        one copy after the other. A replica that needs too many events in memory is disconnected.
        """
        return self._tables_at if self.position is None else self.position.sequence

    def has_shipped(self, end: StreamPosition) -> bool:
        """Return True if everything up to `end`, the master's end, is shipped."""
        return self.position == end and self._shipped_epoch == self._epoch

    def next_shipment(self, most_bytes: int = CHUNK_BYTES) -> Shipment | None:
        """Return what to ship now, or None.

        None: everything is shipped, or the replica does not expect the stream.

        Raises:
            ProtocolError: events that it still needs were dropped: close, it gets a copy when it reconnects.
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
            pending = self._events(position.sequence)[: max(bound.sequence - position.sequence, 0)]
        except InvalidInput as error:
            raise ProtocolError(f"the events after {position.sequence} were dropped") from error
        due = [event for event in pending if event.log_offset <= position.offset]
        if due:
            return ShipEvents(_fitting(due, most_bytes))
        log_bound = min(bound.offset, pending[0].log_offset) if pending else bound.offset
        if position.offset < log_bound:
            return ShipLog(position.offset, min(log_bound, position.offset + most_bytes))
        return None

    def frame_of(self, shipment: Shipment, log: bytes | memoryview = b"") -> ReplicationFrame:
        """Return the frame of a shipment, and count it as shipped.

        `log` is the content of a shipment of log bytes. It may be shorter than the shipment: the rest comes with the
        next one.
        """
        assert self.position is not None
        position = self.position
        if isinstance(shipment, ShipEpoch):
            self._shipped_epoch = shipment.entry.epoch
            return self._frame(FrameKind.EPOCH, shipment.entry.start, encode_epochs([shipment.entry]))
        if isinstance(shipment, ShipEvents):
            first = shipment.events[0].sequence
            self.position = position._replace(sequence=shipment.events[-1].sequence)
            return self._frame(FrameKind.STATE, position._replace(sequence=first), encode_events(shipment.events))
        self.position = StreamPosition(position.offset + len(log), position.sequence)
        return self._frame(FrameKind.LOG, position, log)

    def heartbeat(self) -> ReplicationFrame:
        """Return the frame to send when there is nothing to ship.

        The replica answers it, and receives the confirmed position.
        """
        return self._frame(FrameKind.HEARTBEAT, self._extent().end, b"")

    def _frame(self, kind: FrameKind, position: StreamPosition, body: bytes | memoryview) -> ReplicationFrame:
        return ReplicationFrame(kind, self._epoch, position, self._confirmed(), body)


def _fitting(events: Sequence[JournalEvent], most_bytes: int) -> Sequence[JournalEvent]:
    """Return as many of the events as fit, at least one."""
    most = min(most_bytes, MAX_BODY[FrameKind.STATE])
    total = 0
    for number, event in enumerate(events):
        total += len(event.payload) + 12
        if total > most and number:
            return events[:number]
    return events
