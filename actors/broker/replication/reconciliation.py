"""Decide a master's answer to a connecting replica: continue, truncate, or take a snapshot.

A replica never just gets heartbeats: one that is ahead, or that needs data that the master has deleted, gets an answer
that resolves this.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition


@dataclass(frozen=True, slots=True)
class ContinueFrom:
    """The answer that the replica's stream is valid and continues from its end.

    All that the replica has is the master's, too, in epochs up to `epoch`.
    """

    position: StreamPosition
    epoch: int


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """The answer that the end of the replica's stream is invalid.

    Data after `position`, and of epochs after `epoch`, are not part of the master's stream. The replica truncates them
    durably, and then reports its end again.
    """

    position: StreamPosition
    epoch: int


class SnapshotReason(enum.Enum):
    """Why the stream alone is not sufficient."""

    NO_COMMON_EPOCH = "no epoch in common"
    CUT_BELOW_BEGIN = "the replica cannot cut off this part of its log or its events"
    LOG_DELETED = "the master has deleted this part of its log"
    STATE_DROPPED = "the master has dropped these events"


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """The answer to load the master's tables, then to follow from `position`.

    Attributes:
        position: where the log continues, and up to which event the tables have everything.
        epoch: the newest epoch of these tables, or that both have; 0: none.
        keeps_log: the log before that position is the same as the master's and stays; else it restarts there, empty.
    """

    reason: SnapshotReason
    position: StreamPosition
    epoch: int
    keeps_log: bool


ReconcileResult = ContinueFrom | TruncateTo | InstallSnapshot


@dataclass(frozen=True, slots=True)
class StreamExtent:
    """The part of the stream that a broker has.

    Attributes:
        epochs: its epoch map.
        begin: the log's minimum offset, and the number up to which events cannot be sent (master) or cut off (replica)
            any more. A number behind `end` asks for a snapshot, because events are missing.
        end: where the stream ends here.
    """

    epochs: EpochMap
    begin: StreamPosition
    end: StreamPosition

    @property
    def epoch(self) -> int:
        """Return the epoch in which the stream ends here, 0 without one.

        After a snapshot the map may have newer epochs that the log has not reached yet.
        """
        entry = self.epochs.at(self.end.offset)
        return 0 if entry is None else entry.epoch


def reconcile(master: StreamExtent, replica: StreamExtent) -> ReconcileResult:
    """Return the master's answer to a replica with this extent."""
    if replica.end == BEGIN and not len(replica.epochs):
        common_epoch: EpochStart | None = EpochStart(0, BEGIN)
    else:
        common_epoch = master.epochs.common_epoch(master.end, replica.epochs, replica.end)
    if common_epoch is None:
        return _from_begin(SnapshotReason.NO_COMMON_EPOCH, master)
    place = common_epoch.start
    if place.offset < replica.begin.offset:
        return _from_begin(SnapshotReason.CUT_BELOW_BEGIN, master)
    if place.offset < master.begin.offset:
        return _from_begin(SnapshotReason.LOG_DELETED, master)
    tables = StreamPosition(place.offset, master.begin.sequence)
    if place.sequence < replica.begin.sequence:
        return InstallSnapshot(
            SnapshotReason.CUT_BELOW_BEGIN, tables, _tables_epoch(master, common_epoch.epoch), keeps_log=True
        )
    if place.sequence < master.begin.sequence:
        return InstallSnapshot(
            SnapshotReason.STATE_DROPPED, tables, _tables_epoch(master, common_epoch.epoch), keeps_log=True
        )
    if place != replica.end or replica.epochs.last_epoch > common_epoch.epoch:
        return TruncateTo(place, common_epoch.epoch)
    return ContinueFrom(place, common_epoch.epoch)


def _from_begin(reason: SnapshotReason, master: StreamExtent) -> InstallSnapshot:
    return InstallSnapshot(reason, master.begin, _tables_epoch(master, 0), keeps_log=False)


def _tables_epoch(master: StreamExtent, common_epoch: int) -> int:
    """Return the newest epoch that the master's tables include, or that both brokers have."""
    known = [entry.epoch for entry in master.epochs if entry.start.sequence <= master.begin.sequence]
    return max([common_epoch, *known])
