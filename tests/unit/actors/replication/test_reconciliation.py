"""Test the three answers to a replica that connects."""

from __future__ import annotations

import pytest

from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.reconciliation import (
    ContinueFrom,
    InstallSnapshot,
    ReconcileResult,
    SnapshotReason,
    StreamExtent,
    TruncateTo,
    reconcile,
)
from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition


def at(offset: int, sequence: int = 0) -> StreamPosition:
    return StreamPosition(offset, sequence)


def extent(end: StreamPosition, *entries: tuple[int, StreamPosition], begin: StreamPosition = BEGIN) -> StreamExtent:
    return StreamExtent(EpochMap(EpochStart(epoch, start) for epoch, start in entries), begin, end)


MASTER = extent(at(500, 50), (1, at(0)), (3, at(100, 10)), (5, at(300, 30)))


ONE, THREE, FIVE = (1, at(0)), (3, at(100, 10)), (5, at(300, 30))
ANSWERS: dict[str, tuple[StreamExtent, ReconcileResult]] = {
    "an empty one": (extent(BEGIN), ContinueFrom(BEGIN, 0)),
    "behind": (extent(at(400, 40), ONE, THREE, FIVE), ContinueFrom(at(400, 40), 5)),
    "an epoch behind": (extent(at(200, 20), ONE, THREE), ContinueFrom(at(200, 20), 3)),
    "a former master's tail": (extent(at(350, 35), ONE, THREE), TruncateTo(at(300, 30), 3)),
    "a tail of state alone": (extent(at(300, 35), ONE, THREE), TruncateTo(at(300, 30), 3)),
    "an epoch that lost": (extent(at(600, 60), ONE, THREE, (4, at(350, 35))), TruncateTo(at(300, 30), 3)),
    "ahead of the master": (extent(at(700, 70), ONE, THREE, FIVE), TruncateTo(at(500, 50), 5)),
    "an empty epoch more": (extent(at(300, 30), ONE, THREE, (4, at(300, 30))), TruncateTo(at(300, 30), 3)),
    "another stream": (
        extent(at(50), (2, at(0))),
        InstallSnapshot(SnapshotReason.NO_COMMON_EPOCH, BEGIN, 1, keeps_log=False),
    ),
    "a log without epochs": (
        extent(at(50)),
        InstallSnapshot(SnapshotReason.NO_COMMON_EPOCH, BEGIN, 1, keeps_log=False),
    ),
    "folded beyond the cut": (
        extent(at(350, 35), ONE, THREE, begin=at(0, 33)),
        InstallSnapshot(SnapshotReason.CUT_BELOW_BEGIN, at(300, 0), 3, keeps_log=True),
    ),
}


@pytest.mark.parametrize(("replica", "verdict"), ANSWERS.values(), ids=ANSWERS)
def test_reconcile_answers_each_kind_of_replica(replica: StreamExtent, verdict: ReconcileResult) -> None:
    assert reconcile(MASTER, replica) == verdict


def test_reconcile_replica_ahead_or_below_master_minimum() -> None:
    master = extent(at(500, 50), (1, at(0)), (3, at(100, 10)), begin=at(200, 5))
    ahead = extent(at(900, 90), (1, at(0)), (3, at(100, 10)))
    assert reconcile(master, ahead) == TruncateTo(at(500, 50), 3)
    from_begin = InstallSnapshot(SnapshotReason.LOG_DELETED, at(200, 5), 1, keeps_log=False)
    assert reconcile(master, extent(at(150, 12), ONE, THREE)) == from_begin
    assert reconcile(master, extent(BEGIN)) == from_begin
    folded = extent(at(500, 50), (1, at(0)), begin=at(0, 5))
    tables = InstallSnapshot(SnapshotReason.STATE_DROPPED, at(10, 5), 1, keeps_log=True)
    assert reconcile(folded, extent(at(10, 2), (1, at(0)))) == tables


def test_reconcile_handles_empty_epochs() -> None:
    master = extent(at(120), (3, at(0)), (4, at(100)), (5, at(100)))
    assert reconcile(master, extent(at(150), (3, at(0)))) == TruncateTo(at(100), 3)
    assert reconcile(master, extent(at(150), (3, at(0)), (4, at(100)))) == TruncateTo(at(100), 4)
    assert reconcile(master, extent(at(100), (3, at(0)))) == ContinueFrom(at(100), 3)


def test_truncation_is_requested_once() -> None:
    replica = extent(at(600, 60), (1, at(0)), (3, at(100, 10)), (4, at(350, 35)))
    verdict = reconcile(MASTER, replica)
    assert isinstance(verdict, TruncateTo)
    replica.epochs.cut(verdict.epoch)
    again = StreamExtent(replica.epochs, BEGIN, verdict.position)
    assert reconcile(MASTER, again) == ContinueFrom(verdict.position, verdict.epoch)
