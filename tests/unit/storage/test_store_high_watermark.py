"""Test that with sync flush a message is readable only once it is on disk (fault 13.13)."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raymq.storage.errors import MessageNotFound, OffsetOutOfRange
from raymq.storage.log.consume_queue import FILLER_SIZE, ConsumeQueue, make_entries
from raymq.storage.records.java_hash import java_hash
from raymq.storage.store import Store
from tests.store_records import SMALL, append, bodies, make_record

#: The background never flushes by itself.
SYNC = replace(SMALL, flush="sync", flush_interval_ms=3_600_000)
EVER = (0, 1 << 60)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "s", SYNC)


def test_message_is_not_readable_before_it_is_on_disk(store: Store) -> None:
    append(store, make_record(b"0", keys="k"))
    store.flush()
    placed = append(store, make_record(b"1", keys="k", tags="a"))
    place = int(placed.physical_offsets[0])
    assert store.confirmed.offset < store.max_physical_offset
    assert store.max_offset("orders", 0) == 1
    assert bodies(store) == [b"0"]
    with store.read("orders", 0, 1) as lease:
        assert len(lease) == 0
    with store.read("orders", 0, 0, tags_codes=[java_hash("a")]) as lease:
        assert (len(lease), lease.next_offset) == (0, 1)
    with pytest.raises(OffsetOutOfRange):
        store.read("orders", 0, 2)
    assert [len(column) for column in store.entries("orders", 0, 0, 10)] == [1, 1, 1]
    assert [record.body for record in store.query("orders", "k", *EVER, 9)] == [b"0"]
    for look in (store.read_at, store.raw_at):
        with pytest.raises(MessageNotFound):
            look(place)
    assert store.offset_at_time("orders", 0, placed.store_timestamp_ms + 1) == 1
    store.flush()
    assert store.max_offset("orders", 0) == 2
    assert bodies(store) == [b"0", b"1"]
    assert store.read_at(place).body == b"1"
    assert [record.body for record in store.query("orders", "k", *EVER, 9)] == [b"1", b"0"]
    store.close()


def test_queue_with_only_unflushed_messages_is_empty(store: Store) -> None:
    append(store, make_record(b"0"))
    assert (store.min_offset("orders", 0), store.max_offset("orders", 0)) == (0, 0)
    assert store.queues("orders") == [0]
    store.close()


def test_reads_of_written_records_see_unflushed_messages(store: Store) -> None:
    append(store, make_record(b"0", keys="k"))
    assert store.max_offset("orders", 0, written=True) == 1
    with store.read("orders", 0, 0, written=True) as lease:
        assert [record.body for record in lease.messages()] == [b"0"]
    assert len(store.entries("orders", 0, 0, 9, written=True)[0]) == 1
    assert [record.body for record in store.query("orders", "k", *EVER, 9, written=True)] == [b"0"]
    store.close()


def test_async_flush_makes_messages_readable_at_once(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", replace(SYNC, flush="async")) as store:
        append(store, make_record(b"0"))
        assert store.flushed_offset < store.confirmed.offset == store.max_physical_offset
        assert bodies(store) == [b"0"]


def test_messages_found_at_open_are_readable(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s", SYNC)
    append(store, *(make_record(b"%d" % number) for number in range(40)))
    store._flusher.stop()
    store._abandon()
    with Store.open(tmp_path / "s", SYNC) as store:
        assert len(bodies(store)) == 40


def test_queue_ends_follow_the_high_watermark(store: Store) -> None:
    # Appends and flushes are random: a queue's readable maximum counts its records before the high watermark.
    random_ = random.Random(13)
    ends: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for _ in range(200):
        chosen = [random_.randrange(3) for _ in range(random_.choice((1, 1, 3, 14)))]
        records = [make_record(b"x" * random_.randrange(1, 90), queue_id=queue_id) for queue_id in chosen]
        for queue_id, place, record in zip(chosen, append(store, *records).physical_offsets, records, strict=True):
            ends[queue_id].append(int(place) + len(record))
        if random_.random() < 0.3:
            store.flush()
        for queue_id, known in ends.items():
            if known:
                expected = sum(end <= store.confirmed.offset for end in known)
                assert store.max_offset("orders", queue_id) == expected
                assert len(bodies(store, queue_id=queue_id)) == expected
    store.close()


@pytest.mark.parametrize("seed", range(20))
def test_end_offset_at_is_the_first_entry_beyond_the_point(tmp_path: Path, seed: int) -> None:
    # The expected value is a plain count, also where messages are lost or entries are damaged.
    random_ = random.Random(seed)
    queue = ConsumeQueue(tmp_path / "q", 16, writable=True)
    end, ends, entries = 0, [], []
    for _ in range(random_.randrange(1, 70)):
        size = random_.randrange(100, 200)
        kind = random_.random()
        entries.append((0, FILLER_SIZE) if kind < 0.1 else (end, 0) if kind < 0.15 and entries else (end, size))
        end += size if 0 < entries[-1][1] < FILLER_SIZE else 0
        ends.append(end)
    places, sizes = zip(*entries, strict=True)
    queue.put(0, make_entries(places, sizes, np.zeros(len(entries))))
    for point in [0, end, *(random_.randrange(end + 1) for _ in range(30))]:
        assert queue.end_offset_at(point) == sum(each <= point for each in ends)
    queue.close()


def test_truncated_queue_lowers_its_confirmed_end(tmp_path: Path) -> None:
    queue = ConsumeQueue(tmp_path / "q", 16, writable=True)
    queue.put(0, make_entries([0, 100, 200], [100, 100, 100], [0, 0, 0]))
    assert queue.confirmed_end(300) == 3
    queue.truncate(100)
    assert queue.confirmed_end(300) == 1
    queue.close()
