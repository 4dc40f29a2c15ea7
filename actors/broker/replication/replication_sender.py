"""Decide on a master how to answer a replica, and what to ship next.

A `ReplicationSender` exists as long as its connection, and as long as the epoch of its master: with a new epoch all
connections are closed and made anew, so that none continues in an earlier one. Log bytes and events of the state
journal are sent in the order in which the master made them. An EPOCH frame separates the data of two epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raymq.actors.broker.replication.epoch_map import EpochMap
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
from raymq.actors.broker.replication.replication_frames import Buffer, FrameKind, ReplicationFrame
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.actors.errors import ProtocolError
from raymq.storage.errors import InvalidInput
from raymq.storage.journal.journal_event import JournalEvent

#: Bytes of the log in one frame.
CHUNK_BYTES = 1 << 20


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

        After GO_ON `next_frame` begins. After a SNAPSHOT frame the caller sends the tables, and SNAPSHOT_END last;
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

    def next_frame(
        self, end: StreamPosition, log: Callable[[int, int], Buffer], most_bytes: int = CHUNK_BYTES
    ) -> ReplicationFrame | None:
        """Return the next frame of the stream up to `end`, and count it as shipped.

        None: everything is shipped, or the replica does not expect the stream.

        Args:
            end: where the master's stream ends.
            log: returns the log's bytes between two offsets; it may return fewer, the rest comes with the next frame.
            most_bytes: of the stream in one frame.

        Raises:
            ProtocolError: events that it still needs were dropped: close, it gets a copy when it reconnects.
        """
        position = self.position
        if position is None:
            return None
        if self._shipped_epoch != self._epoch:
            entry = self._extent().epochs.after(self._shipped_epoch)
            if entry is not None:
                if position.covers(entry.start):
                    self._shipped_epoch = entry.epoch
                    return self._frame(FrameKind.EPOCH, entry.start, encode_epochs([entry]))
                end = entry.start
        log_end = end.offset
        if position.sequence < end.sequence:
            pending = self._pending_events(position.sequence, end.sequence)
            if due := [event for event in pending if event.log_offset <= position.offset]:
                events = _fitting(due, most_bytes)
                self.position = position._replace(sequence=events[-1].sequence)
                first = position._replace(sequence=events[0].sequence)
                return self._frame(FrameKind.STATE, first, encode_events(events))
            log_end = min(log_end, *(event.log_offset for event in pending[:1]))
        if position.offset >= log_end:
            return None
        content = log(position.offset, min(log_end, position.offset + most_bytes))
        self.position = StreamPosition(position.offset + len(content), position.sequence)
        return self._frame(FrameKind.LOG, position, content)

    def _pending_events(self, after: int, last: int) -> Sequence[JournalEvent]:
        try:
            return self._events(after)[: last - after]
        except InvalidInput as error:
            raise ProtocolError(f"the events after {after} were dropped") from error

    def heartbeat(self) -> ReplicationFrame:
        """Return the frame to send when there is nothing to ship.

        The replica answers it, and receives the confirmed position.
        """
        return self._frame(FrameKind.HEARTBEAT, self._extent().end, b"")

    def _frame(self, kind: FrameKind, position: StreamPosition, body: Buffer) -> ReplicationFrame:
        return ReplicationFrame(kind, self._epoch, position, self._confirmed(), body)


def _fitting(events: Sequence[JournalEvent], most_bytes: int) -> Sequence[JournalEvent]:
    """Return as many of the events as fit, at least one."""
    most = min(most_bytes, FrameKind.STATE.max_body_bytes)
    total = 0
    for number, event in enumerate(events):
        total += len(event.payload) + 12
        if total > most and number:
            return events[:number]
    return events
