"""Test the broker's producer state: duplicates, sequence gaps, epochs, expiry, snapshots."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from raymq.actors.broker.core.appending.idempotence import (
    EXPIRY_SECONDS,
    KEPT_RESULTS,
    ProducerKey,
    ProducerStateTable,
    StoredBatch,
)
from raymq.actors.errors import SequenceGap
from raymq.actors.protocol import MessageQueue
from raymq.actors.sending.partition_sequence import PartitionSequences
from raymq.storage.records.producer_sequence import ProducerSequence
from tests.unit.actors.clock import FakeClock
from tests.validation import check_invariants, validated

LANE: ProducerKey = ("p", "t", 0)


@pytest.fixture
def table(clock: FakeClock) -> Iterator[ProducerStateTable]:
    with validated(ProducerStateTable(clock, max_lanes=3)) as made:
        yield made


def count_below(log_end: int) -> Callable[[StoredBatch], int]:
    """Return a function that counts a batch's messages below `log_end`."""
    return lambda stored: min(stored.count, log_end - stored.offset)


ALL = count_below(1 << 60)


def sequence(first: int, count: int = 1, epoch: int = 0) -> ProducerSequence:
    return ProducerSequence("p", epoch, first, count)


def store(
    table: ProducerStateTable, first: int, count: int = 1, epoch: int = 0, lane: ProducerKey = LANE
) -> StoredBatch:
    assert table.check(lane, sequence(first, count, epoch)) is None
    stored = StoredBatch(lane[1], lane[2], 100 + first, count)
    table.remember(lane, sequence(first, count, epoch), stored)
    return stored


def test_duplicate_batch_returns_first_result(table: ProducerStateTable) -> None:
    batches = {first: store(table, first, 2) for first in (0, 2, 4)}
    assert {first: table.check(LANE, sequence(first, 2)) for first in batches} == batches


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(sequence(7), id="one is missing before it"),
        pytest.param(sequence(4, 1), id="another size than the batch that was stored"),
        pytest.param(sequence(3, 1), id="begins in the middle of a stored batch"),
        pytest.param(sequence(0, 1, epoch=1), id="of an epoch that is over"),
        pytest.param(sequence(1, 1, epoch=3), id="a new epoch begins at 0"),
        pytest.param(sequence(2, 2, epoch=3), id="what the old epoch stored is not the new one's"),
    ],
)
def test_sequence_gap_raises_and_keeps_state(table: ProducerStateTable, wrong: ProducerSequence) -> None:
    for first in (0, 2, 4):
        store(table, first, 2, epoch=2)
    before = table.rows(table.lanes())
    with pytest.raises(SequenceGap):
        table.check(LANE, wrong)
    assert table.rows(table.lanes()) == before


def test_unknown_producer_must_start_at_sequence_0(table: ProducerStateTable) -> None:
    with pytest.raises(SequenceGap):
        table.check(LANE, sequence(1))
    assert table.check(LANE, sequence(0)) is None


def test_lanes_are_independent(table: ProducerStateTable) -> None:
    store(table, 0)
    for other in [("q", "t", 0), ("p", "u", 0), ("p", "t", 1)]:
        assert table.check(other, sequence(0)) is None


def test_new_epoch_starts_at_0_and_fences_old_epoch(table: ProducerStateTable) -> None:
    store(table, 0, 5)
    store(table, 0, 1, epoch=1)
    with pytest.raises(SequenceGap):
        table.check(LANE, sequence(5))


def test_oldest_results_are_evicted(table: ProducerStateTable) -> None:
    for first in range(KEPT_RESULTS + 1):
        store(table, first)
    with pytest.raises(SequenceGap):
        table.check(LANE, sequence(0))
    assert table.check(LANE, sequence(1)) is not None


def test_idle_lanes_expire_and_lane_count_is_bounded(table: ProducerStateTable, clock: FakeClock) -> None:
    for number in range(5):
        store(table, 0, lane=("p", "t", number))
        clock.advance(1)
    assert len(table) == 3
    clock.advance(EXPIRY_SECONDS - 2)
    table.expire()
    assert len(table) == 1
    clock.advance(2)
    table.expire()
    assert len(table) == 0


def test_deleted_topic_drops_producer_state(table: ProducerStateTable) -> None:
    store(table, 0)
    store(table, 0, lane=("p", "u", 0))
    table.forget_topic("t")
    assert table.check(LANE, sequence(0)) is None
    assert table.check(("p", "u", 0), sequence(0)) is not None


def test_snapshot_restores_producer_state(table: ProducerStateTable, clock: FakeClock) -> None:
    for first in range(0, 14, 2):
        store(table, first, 2)
    again = ProducerStateTable(clock)
    again.load(json.loads(json.dumps(table.rows(table.lanes()))), ALL)
    check_invariants(again)
    assert again.rows(again.lanes()) == table.rows(table.lanes())
    assert again.check(LANE, sequence(12, 2)) == StoredBatch("t", 0, 112, 2)


def test_batches_beyond_log_end_are_dropped(table: ProducerStateTable, clock: FakeClock) -> None:
    for first in range(4):
        store(table, first)
    again = ProducerStateTable(clock)
    again.load(table.rows(table.lanes()), count_below(102))
    check_invariants(again)
    assert again.check(LANE, sequence(1)) is not None
    assert again.check(LANE, sequence(2)) is None


@pytest.mark.parametrize(
    ("log_end", "here"), [(110, 10), (109, 9), (101, 1), pytest.param(100, None, id="nothing of it")]
)
def test_truncated_batch_reports_stored_count(
    table: ProducerStateTable, clock: FakeClock, log_end: int, here: int | None
) -> None:
    """Load a journal row against a truncated log, then load the resulting row again."""
    store(table, 0, 10)
    for _ in range(2):
        again = ProducerStateTable(clock)
        again.load(json.loads(json.dumps(table.rows(table.lanes()))), count_below(log_end))
        check_invariants(again)
        assert again.check(LANE, sequence(0, 10)) == (None if here is None else StoredBatch("t", 0, 100, here))
        table = again


def test_truncated_batch_must_be_completed_before_next_batch(table: ProducerStateTable) -> None:
    table.replay(LANE, sequence(0, 10), StoredBatch("t", 0, 100, 4), 1_000.0)
    for wrong in (sequence(4), sequence(4, 6), sequence(10), sequence(0, 4), sequence(0, 9), sequence(4, 10)):
        with pytest.raises(SequenceGap):
            table.check(LANE, wrong)
    known = table.check(LANE, sequence(0, 10))
    assert known is not None
    assert known.total == 4
    whole = table.complete(LANE, StoredBatch("t", 0, 200, 6))
    assert table.check(LANE, sequence(0, 10)) == whole
    assert [(place.offset, place.count) for place in whole.places] == [(100, 4), (200, 6)]
    assert table.check(LANE, sequence(10)) is None
    assert table.check(LANE, sequence(0, 1, epoch=1)) is None


#: The log of a lane, in log order: first sequence, count that the first record states, offset, messages stored.
#: Then the expected state: next sequence, messages missing before it, and the places of the last batch.
REPLAYED = {
    "whole": ([(0, 10, 100, 10)], 10, 0, [(100, 10)]),
    "cut": ([(0, 10, 100, 4)], 4, 6, [(100, 4)]),
    "cut and completed": ([(0, 10, 100, 4), (4, 6, 200, 6)], 10, 0, [(100, 4), (200, 6)]),
    "cut twice": ([(0, 10, 100, 4), (4, 6, 200, 1)], 5, 5, [(100, 4), (200, 1)]),
    "cut twice and completed": (
        [(0, 10, 100, 4), (4, 6, 200, 1), (5, 5, 300, 5)], 10, 0, [(100, 4), (200, 1), (300, 5)]
    ),
    "a copy of a cut one": ([(0, 10, 100, 4), (0, 10, 500, 1)], 4, 6, [(100, 4)]),
    "cut, and its rest was lost": ([(0, 10, 100, 4), (10, 2, 200, 2)], 12, 0, [(200, 2)]),
    "cut, and another one follows": ([(0, 10, 100, 4), (4, 2, 200, 2)], 6, 0, [(200, 2)]),
    "completed, and the next one": ([(0, 10, 100, 4), (4, 6, 200, 6), (10, 1, 300, 1)], 11, 0, [(300, 1)]),
}  # fmt: skip


@pytest.mark.parametrize("case", REPLAYED)
def test_replay_of_truncated_batches(table: ProducerStateTable, clock: FakeClock, case: str) -> None:
    found, following, missing, places = REPLAYED[case]
    for first, count, offset, there in found:
        table.replay(LANE, sequence(first, count), StoredBatch("t", 0, offset, there), 1_000.0)
        check_invariants(table)
    again = ProducerStateTable(clock)
    again.load(json.loads(json.dumps(table.rows(table.lanes()))), ALL)
    check_invariants(again)
    for each in (table, again):
        ((_, _, _, _, next_sequence, _, results, missing_count),) = each.rows([LANE])
        assert (next_sequence, missing_count) == (following, missing)
        assert [tuple(results[-1][at : at + 2]) for at in range(3, len(results[-1]), 4)] == places


def test_completed_batch_may_be_truncated_again(table: ProducerStateTable, clock: FakeClock) -> None:
    table.replay(LANE, sequence(0, 10), StoredBatch("t", 0, 100, 4), 1_000.0)
    table.complete(LANE, StoredBatch("t", 0, 200, 6))
    for log_end, here in ((206, 10), (203, 7), (200, 4), (150, 4), (102, 2)):
        again = ProducerStateTable(clock)
        again.load(table.rows(table.lanes()), count_below(log_end))
        check_invariants(again)
        known = again.check(LANE, sequence(0, 10))
        assert known is not None
        assert known.total == here


def test_rows_of_older_journal_are_loaded(table: ProducerStateTable) -> None:
    table.load([["p", "t", 0, 3, 12, 1_000.0, [[10, "t", 0, 100, 2]]]], ALL)
    assert table.check(LANE, sequence(10, 2, epoch=3)) == StoredBatch("t", 0, 100, 2)
    assert table.check(LANE, sequence(12, epoch=3)) is None


def test_replay_ignores_duplicate_batches(table: ProducerStateTable) -> None:
    table.replay(LANE, sequence(6, 2), StoredBatch("t", 0, 50, 2), 1_000.0)
    table.replay(LANE, sequence(8, 1), StoredBatch("t", 0, 52, 1), 1_000.0)
    table.replay(LANE, sequence(6, 2), StoredBatch("t", 0, 60, 2), 1_000.0)
    assert table.check(LANE, sequence(6, 2)) == StoredBatch("t", 0, 50, 2)
    assert table.check(LANE, sequence(9)) is None


def test_partition_sequence_counts_and_restarts_with_epoch() -> None:
    sequences, queue = PartitionSequences("p"), MessageQueue("t", "a", 0)
    lane = sequences.hold(queue).count
    assert lane.sequence(3) == lane.sequence(3) == sequence(0, 3)
    lane.stored(3)
    assert lane.sequence(2) == sequence(3, 2)
    lane.begin_epoch()
    assert sequences.hold(queue).count.sequence(2) == sequence(0, 2, epoch=1)
    assert PartitionSequences().producer != PartitionSequences().producer


def test_lane_used_with_clock_ahead_does_not_block_expiry(table: ProducerStateTable, clock: FakeClock) -> None:
    """Cover fault 13.29."""
    month = 30 * 86_400.0
    clock.advance(month)
    store(table, 0, lane=("ahead", "t", 0))
    clock.advance(-month)
    store(table, 0, lane=("p", "t", 1))
    table.expire()
    assert len(table) == 2
    clock.advance(EXPIRY_SECONDS + 1)
    table.expire()
    assert len(table) == 0
