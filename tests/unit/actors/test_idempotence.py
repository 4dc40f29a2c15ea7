"""What a broker remembers of its producers: repeats, gaps, epochs, expiry, snapshots."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from raymq.actors.broker.core.appending.idempotence import (
    EXPIRY_SECONDS,
    KEPT_RESULTS,
    Lane,
    ProducerTable,
    StoredBatch,
)
from raymq.actors.errors import SequenceGap
from raymq.actors.protocol import MessageQueue
from raymq.actors.sending.sequencing import SequenceLanes
from raymq.storage.records.producer_sequence import ProducerSequence
from tests.unit.actors.clock import FakeClock
from tests.validated import validated

LANE: Lane = ("p", "t", 0)


@pytest.fixture
def table(clock: FakeClock) -> Iterator[ProducerTable]:
    with validated(ProducerTable(clock, max_lanes=3)) as made:
        yield made


def sequence(first: int, count: int = 1, epoch: int = 0) -> ProducerSequence:
    return ProducerSequence("p", epoch, first, count)


def store(table: ProducerTable, first: int, count: int = 1, epoch: int = 0, lane: Lane = LANE) -> StoredBatch:
    assert table.check(lane, sequence(first, count, epoch)) is None
    stored = StoredBatch(lane[1], lane[2], 100 + first, count)
    table.remember(lane, sequence(first, count, epoch), stored)
    return stored


def test_a_repeated_batch_gets_the_first_result(table: ProducerTable) -> None:
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
def test_a_gap_is_an_error_and_changes_nothing(table: ProducerTable, wrong: ProducerSequence) -> None:
    for first in (0, 2, 4):
        store(table, first, 2, epoch=2)
    before = table.rows(table.lanes())
    with pytest.raises(SequenceGap):
        table.check(LANE, wrong)
    assert table.rows(table.lanes()) == before


def test_an_unknown_producer_begins_at_0(table: ProducerTable) -> None:
    with pytest.raises(SequenceGap):
        table.check(LANE, sequence(1))
    assert table.check(LANE, sequence(0)) is None


def test_lanes_know_nothing_of_each_other(table: ProducerTable) -> None:
    store(table, 0)
    for other in [("q", "t", 0), ("p", "u", 0), ("p", "t", 1)]:
        assert table.check(other, sequence(0)) is None


def test_a_new_epoch_begins_at_0_and_ends_the_old_one(table: ProducerTable) -> None:
    store(table, 0, 5)
    store(table, 0, 1, epoch=1)
    with pytest.raises(SequenceGap):
        table.check(LANE, sequence(5))


def test_the_oldest_results_are_not_kept(table: ProducerTable) -> None:
    for first in range(KEPT_RESULTS + 1):
        store(table, first)
    with pytest.raises(SequenceGap):
        table.check(LANE, sequence(0))
    assert table.check(LANE, sequence(1)) is not None


def test_silent_lanes_expire_and_their_number_is_bounded(table: ProducerTable, clock: FakeClock) -> None:
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


def test_a_deleted_topic_is_forgotten(table: ProducerTable) -> None:
    store(table, 0)
    store(table, 0, lane=("p", "u", 0))
    table.forget_topic("t")
    assert table.check(LANE, sequence(0)) is None
    assert table.check(("p", "u", 0), sequence(0)) is not None


def test_a_snapshot_brings_everything_back(table: ProducerTable, clock: FakeClock) -> None:
    for first in range(0, 14, 2):
        store(table, first, 2)
    again = ProducerTable(clock)
    again.load(json.loads(json.dumps(table.rows(table.lanes()))), lambda _: True)
    again.validate()
    assert again.rows(again.lanes()) == table.rows(table.lanes())
    assert again.check(LANE, sequence(12, 2)) == StoredBatch("t", 0, 112, 2)


def test_what_the_log_lost_never_was(table: ProducerTable, clock: FakeClock) -> None:
    for first in range(4):
        store(table, first)
    again = ProducerTable(clock)
    again.load(table.rows(table.lanes()), lambda stored: stored.offset < 102)
    again.validate()
    assert again.check(LANE, sequence(1)) is not None
    assert again.check(LANE, sequence(2)) is None


def test_the_log_is_believed_and_its_copies_are_not(table: ProducerTable) -> None:
    table.replay(LANE, sequence(6, 2), StoredBatch("t", 0, 50, 2), 1_000.0)
    table.replay(LANE, sequence(8, 1), StoredBatch("t", 0, 52, 1), 1_000.0)
    table.replay(LANE, sequence(6, 2), StoredBatch("t", 0, 60, 2), 1_000.0)
    assert table.check(LANE, sequence(6, 2)) == StoredBatch("t", 0, 50, 2)
    assert table.check(LANE, sequence(9)) is None


def test_a_producers_lane_counts_what_was_stored_and_begins_anew_when_in_doubt() -> None:
    lanes = SequenceLanes("p")
    lane = lanes.of(MessageQueue("t", "a", 0))
    assert lane.sequence(3) == lane.sequence(3) == sequence(0, 3)
    lane.stored(3)
    assert lane.sequence(2) == sequence(3, 2)
    lane.begin_epoch()
    assert lanes.of(MessageQueue("t", "a", 0)).sequence(2) == sequence(0, 2, epoch=1)
    assert SequenceLanes().producer != SequenceLanes().producer


def test_a_lane_that_was_used_while_the_clock_was_ahead_does_not_stop_the_expiry_of_all(
    table: ProducerTable, clock: FakeClock
) -> None:
    """Fault 13.29."""
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
