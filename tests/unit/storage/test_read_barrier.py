"""Test that a commit's records are hidden from readers until the commit is complete."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.errors import MessageNotFound, OffsetOutOfRange
from raymq.storage.store import Store
from tests.store_records import SMALL, append, bodies, make_record

EVER = (0, 1 << 60)
TIMER_QUEUE = ("orders", 0)


@pytest.fixture(params=["async", "sync"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store.open(tmp_path / "s", replace(SMALL, flush=request.param, flush_interval_ms=3_600_000))


def test_readers_do_not_see_records_behind_a_read_barrier(store: Store) -> None:
    append(store, make_record(b"0", keys="k"))
    store.flush()
    assert store.read_barrier.block("tx", {TIMER_QUEUE: None}) == {TIMER_QUEUE: 1}
    placed = append(store, make_record(b"1", keys="k"))
    place = int(placed.physical_offsets[0])
    store.flush()
    assert store.max_offset(*TIMER_QUEUE) == 1
    assert bodies(store) == [b"0"]
    with store.read(*TIMER_QUEUE, 1) as lease:
        assert len(lease) == 0
    with pytest.raises(OffsetOutOfRange):
        store.read(*TIMER_QUEUE, 2)
    assert [len(column) for column in store.entries(*TIMER_QUEUE, 0, 10)] == [1, 1, 1]
    assert [record.body for record in store.query("orders", "k", *EVER, 9)] == [b"0"]
    for look in (store.read_at, store.raw_at):
        with pytest.raises(MessageNotFound, match="under way"):
            look(place)
    assert store.offset_at_time(*TIMER_QUEUE, placed.store_timestamp_ms + 1) == 1
    assert store.max_offset(*TIMER_QUEUE, written=True) == 2
    assert len(store.query("orders", "k", *EVER, 9, written=True)) == 2
    assert store.read_barrier.unblock("tx") == [TIMER_QUEUE]
    assert not store.read_barrier.is_active
    assert store.max_offset(*TIMER_QUEUE) == 2
    assert bodies(store) == [b"0", b"1"]
    assert store.read_at(place).body == b"1"
    assert len(store.query("orders", "k", *EVER, 9)) == 2
    store.close()


def test_other_queues_are_readable_during_a_commit(store: Store) -> None:
    store.read_barrier.block("tx", {TIMER_QUEUE: None})
    append(store, make_record(b"0"), make_record(b"1", queue_id=1))
    store.flush()
    assert (bodies(store), bodies(store, queue_id=1)) == ([], [b"1"])
    store.close()


def test_queue_of_two_commits_is_readable_after_both(store: Store) -> None:
    # The second commit begins behind a part of the first one.
    store.read_barrier.block("first", {TIMER_QUEUE: None})
    append(store, make_record(b"first"))
    assert store.read_barrier.block("second", {TIMER_QUEUE: None}) == {TIMER_QUEUE: 0}
    append(store, make_record(b"second"), make_record(b"first"))
    store.flush()
    assert store.read_barrier.unblock("first") == []
    assert bodies(store) == []
    assert store.read_barrier.unblock("second") == [TIMER_QUEUE]
    assert len(bodies(store)) == 3
    store.close()


def test_unwritten_queue_is_empty_under_its_read_barrier(store: Store) -> None:
    assert store.read_barrier.block("tx", {("orders", 7): 5}, with_room=False) == {("orders", 7): 0}
    assert (store.min_offset("orders", 7), store.max_offset("orders", 7)) == (0, 0)
    store.close()


def test_recreated_topic_has_no_read_barrier(store: Store) -> None:
    store.read_barrier.block("tx", {TIMER_QUEUE: None})
    append(store, make_record(b"0"))
    store.delete_topic("orders")
    append(store, make_record(b"new"))
    store.flush()
    assert bodies(store) == [b"new"]
    assert store.read_barrier.unblock("tx") == [TIMER_QUEUE]
    store.close()


def test_expiry_under_a_read_barrier_keeps_the_end_valid(store: Store) -> None:
    append(store, make_record(b"0"))
    store.flush()
    store.read_barrier.block("tx", {TIMER_QUEUE: 0})
    queue = store._dispatcher.get(*TIMER_QUEUE)
    queue.min_offset = 1
    assert store.max_offset(*TIMER_QUEUE) == 1
    store.close()
