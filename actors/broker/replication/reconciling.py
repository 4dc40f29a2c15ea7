"""What a master answers to a replica that connects: go on from here, cut to there, or take a snapshot. Nothing else.

A replica is never left with heartbeats: one that is ahead, or that asks for what the master has no more, is told what
to do about it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.positions import BEGIN, StreamPosition


@dataclass(frozen=True, slots=True)
class GoOn:
    """All that the replica has is the master's, too, in epochs up to `epoch`: the stream goes on from its end."""

    position: StreamPosition
    epoch: int


@dataclass(frozen=True, slots=True)
class CutTo:
    """What the replica has behind this place, or of newer epochs than this one, never was.

    It cuts that off durably, and then says anew where it is.
    """

    position: StreamPosition
    epoch: int


class SnapshotReason(enum.Enum):
    """Why the stream alone does not help."""

    NO_COMMON_EPOCH = "no epoch in common"
    CUT_BELOW_BEGIN = "what is to be cut is folded or deleted on the replica"
    LOG_DELETED = "the master has deleted this part of its log"
    STATE_FOLDED = "the master has folded this part of its state"


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Take the master's tables as they are, then follow the stream from `position`.

    Attributes:
        position: where the log goes on, and up to which state frame the tables have everything.
        epoch: the newest epoch of these tables, or that both have; 0: none.
        keeps_log: the log before that place is the master's, too, and stays; else it begins there, without what was.
    """

    reason: SnapshotReason
    position: StreamPosition
    epoch: int
    keeps_log: bool


Verdict = GoOn | CutTo | TakeSnapshot


@dataclass(frozen=True, slots=True)
class StreamExtent:
    """What a broker has of the stream.

    Attributes:
        epochs: its epoch map.
        begin: the log's minimum offset, and the sequence up to which state is folded into tables.
        end: where the stream ends here.
    """

    epochs: EpochMap
    begin: StreamPosition
    end: StreamPosition

    @property
    def epoch(self) -> int:
        """The epoch that it ends in; 0: none. One that follows tables may know newer ones, and not be there yet."""
        entry = self.epochs.at(self.end.offset)
        return 0 if entry is None else entry.epoch


def reconcile(master: StreamExtent, replica: StreamExtent) -> Verdict:
    """The answer to a replica that has this."""
    if replica.end == BEGIN and not len(replica.epochs):
        agreed: EpochStart | None = EpochStart(0, BEGIN)
    else:
        agreed = master.epochs.agreed(master.end, replica.epochs, replica.end)
    if agreed is None:
        return _from_begin(SnapshotReason.NO_COMMON_EPOCH, master)
    place = agreed.start
    if place.offset < replica.begin.offset:
        return _from_begin(SnapshotReason.CUT_BELOW_BEGIN, master)
    if place.offset < master.begin.offset:
        return _from_begin(SnapshotReason.LOG_DELETED, master)
    tables = StreamPosition(place.offset, master.begin.sequence)
    if place.sequence < replica.begin.sequence:
        return TakeSnapshot(SnapshotReason.CUT_BELOW_BEGIN, tables, _tables_epoch(master, agreed.epoch), keeps_log=True)
    if place.sequence < master.begin.sequence:
        return TakeSnapshot(SnapshotReason.STATE_FOLDED, tables, _tables_epoch(master, agreed.epoch), keeps_log=True)
    if place != replica.end or replica.epochs.last_epoch > agreed.epoch:
        return CutTo(place, agreed.epoch)
    return GoOn(place, agreed.epoch)


def _from_begin(reason: SnapshotReason, master: StreamExtent) -> TakeSnapshot:
    return TakeSnapshot(reason, master.begin, _tables_epoch(master, 0), keeps_log=False)


def _tables_epoch(master: StreamExtent, agreed: int) -> int:
    """The newest epoch that the master's tables have something of, or that both brokers have."""
    known = [entry.epoch for entry in master.epochs if entry.start.sequence <= master.begin.sequence]
    return max([agreed, *known])
