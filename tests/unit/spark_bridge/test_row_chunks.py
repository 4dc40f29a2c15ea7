"""What a write's task makes of its rows: which queue each goes to, in which order, how few chunks they need."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raymq.actors.request_limits import PART_BYTES
from raymq.actors.sending.sender import queue_of_sharding_key
from raymq.client import MessageQueue
from raymq.client.errors import InvalidInput
from raymq.spark_bridge.chunk_builder import ChunkBuilder, RecordChunk
from raymq.spark_bridge.key_partitioner import NO_KEY, queues_for_keys
from raymq.storage.records import record

QUEUES = [MessageQueue("t", broker, number) for broker in ("a", "b") for number in range(3)]
TEXTS = pa.map_(pa.string(), pa.string())


def chunks_of(tables: Sequence[pa.Table], first: int = 0, queues: Sequence[MessageQueue] = QUEUES) -> list[RecordChunk]:
    maker = ChunkBuilder(queues, first, tables[0].column_names)
    return [*(chunk for table in tables for chunk in maker.add(table)), *maker.flush()]


def records_of(chunk: RecordChunk) -> list[record.Record]:
    starts = (np.cumsum(chunk.sizes) - chunk.sizes).tolist()
    return [record.decode(chunk.records, start) for start in starts]


def rows(count: int, **columns: Any) -> pa.Table:
    return pa.table({"body": [b"%06d" % n for n in range(count)], **columns})


def test_rows_of_many_small_batches_share_a_chunk() -> None:
    table = rows(20_000)
    chunks = chunks_of([table.slice(at, 100) for at in range(0, 20_000, 100)])
    assert len(chunks) < 8
    assert [each.body for chunk in chunks for each in records_of(chunk)] == table.column("body").to_pylist()


def test_a_large_partition_goes_round_all_queues_in_full_chunks() -> None:
    table = pa.table({"body": [b"x" * 1_000] * 2_000})
    maker = ChunkBuilder(QUEUES, 0, ["body"])
    sizes, queues = [], Counter[MessageQueue]()
    for _ in range(40):
        for chunk in maker.add(table):
            sizes.append(len(chunk.records))
            queues[chunk.queue] += 1
    assert max(sizes) <= PART_BYTES
    assert min(sizes[-10:]) > PART_BYTES // 2, "a chunk of a large partition is worth its request"
    assert set(queues) == set(QUEUES)
    assert max(queues.values()) - min(queues.values()) <= 1


@pytest.mark.parametrize("columns", [["body"], ["body", "keys"]])
def test_what_is_held_does_not_grow_with_the_partition(columns: list[str]) -> None:
    table = rows(20_000, keys=[f"k{n}" for n in range(20_000)]).select(columns)
    maker = ChunkBuilder(QUEUES, 0, columns)
    most = pa.total_allocated_bytes()
    seen = []
    for _ in range(60):  # 150 MB of records
        for chunk in maker.add(table):
            assert len(chunk.records) <= PART_BYTES
        seen.append(pa.total_allocated_bytes() - most)
    assert max(seen) < 24 << 20
    assert sum(len(chunk.sizes) for chunk in maker.flush()) < 200_000


def test_small_writes_use_all_queues_in_turn() -> None:
    """Two partitions of a few rows went to the same two queues with each write."""
    used = Counter(
        chunk.queue for first in range(600) for part in range(2) for chunk in chunks_of([rows(3)], 7 * first + part)
    )
    assert set(used) == set(QUEUES)
    assert max(used.values()) <= 2 * min(used.values())
    for first in range(6):
        pair = [chunks_of([rows(3)], first + part)[0].queue.broker for part in range(2)]
        assert set(pair) == {"a", "b"}, "neighbours are on different brokers"


@pytest.mark.parametrize("column", ["keys", "sharding_key"])
def test_rows_of_a_key_go_where_a_producer_sends_it_in_their_order(column: str) -> None:
    keys = [f"customer-{n % 37}" if n % 5 else f"käse-{n % 7}" for n in range(5_000)]
    by_key: dict[str, list[bytes]] = defaultdict(list)
    for n, key in enumerate(keys):
        by_key[key].append(b"%06d" % n)
    found: dict[str, list[bytes]] = defaultdict(list)
    table = rows(5_000, **{column: keys})
    for chunk in chunks_of([table.slice(at, 700) for at in range(0, 5_000, 700)], first=3):
        for each in records_of(chunk):
            key = keys[int(each.body)]
            assert chunk.queue == queue_of_sharding_key(sorted(QUEUES), key)
            assert (each.topic, each.queue_id) == (chunk.queue.topic, chunk.queue.queue_id)
            found[key].append(each.body)
    assert found == by_key


def test_a_sharding_key_counts_before_keys_and_the_first_of_several_keys() -> None:
    both = rows(3, keys=[["x"], ["y"], ["z"]], sharding_key=["s", "s", "s"])
    assert {chunk.queue for chunk in chunks_of([both])} == {queue_of_sharding_key(sorted(QUEUES), "s")}
    lists = rows(4, keys=pa.array([["s", "x"], ["s"], [], None], pa.list_(pa.string())))
    (keyed,) = [
        chunk for chunk in chunks_of([lists]) if len(chunk.sizes) == 2 and chunk.queue == chunks_of([both])[0].queue
    ]
    assert [each.body for each in records_of(keyed)] == [b"000000", b"000001"]


def test_rows_without_a_key_go_anywhere() -> None:
    table = rows(4, sharding_key=pa.array([None, "s", "", None]))
    queues = {chunk.queue: len(chunk.sizes) for first in range(6) for chunk in chunks_of([table], first)}
    assert set(queues) == set(QUEUES)


@given(st.lists(st.none() | st.text(max_size=12)), st.integers(1, 64))
def test_the_queue_of_each_key_is_a_producers(keys: list[str | None], count: int) -> None:
    queues = [MessageQueue("t", "a", number) for number in range(count)]
    expected = [queue_of_sharding_key(queues, key).queue_id if key else NO_KEY for key in keys]
    assert queues_for_keys(pa.array(keys, pa.string()), count).tolist() == expected


def large(column: pa.Array) -> pa.Array:
    """As Spark hands a column over where spark.sql.execution.arrow.useLargeVarTypes is set."""
    if pa.types.is_list(column.type):
        return column.cast(pa.list_(pa.large_string()))
    if pa.types.is_map(column.type):
        return pa.array(column.to_pylist(), pa.map_(pa.large_string(), pa.large_string()))
    return column.cast(pa.large_string())


@pytest.mark.parametrize("column", ["sharding_key", "keys", "lists of keys"])
def test_large_types_of_arrow_change_nothing(column: str) -> None:
    """Their offsets were read as those of the small ones, and rows of a key went to other queues, each to another."""
    texts = [f"key-{n % 9}" if n % 5 else None for n in range(200)]
    lists = [[key, "second"] if key else [] for key in texts]
    keys = pa.array(lists if column == "lists of keys" else texts)
    name = "sharding_key" if column == "sharding_key" else "keys"
    texts_of_all = {"tags": pa.array(["tag"] * 200), "properties": pa.array([[("a", "1"), ("b", None)]] * 200, TEXTS)}
    columns = {name: keys, **texts_of_all}

    def told(table: pa.Table) -> list[tuple[MessageQueue, list[tuple[bytes, dict[str, str]]]]]:
        return [
            (chunk.queue, [(each.body, {**each.properties, "UNIQ_KEY": ""}) for each in records_of(chunk)])
            for chunk in chunks_of([table])
        ]

    assert told(rows(200, **{name: large(each) for name, each in columns.items()})) == told(rows(200, **columns))


def test_rows_that_wait_are_apart_by_what_they_wait_for() -> None:
    at = pa.array([None, 1.0015, 2, None, None, None])
    levels = pa.array([None, 0, None, 3, 3, 5], pa.int32())
    chunks = chunks_of([rows(6, deliver_at=at, delay_level=levels)])
    told = [(chunk.delayed, [each.properties for each in records_of(chunk)]) for chunk in chunks]
    waits = [
        (delayed, [(each.get("TIMER_DELIVER_MS"), each.get("DELAY")) for each in properties])
        for delayed, properties in told
    ]
    assert sorted(waits, key=str) == sorted(
        [
            (False, [(None, None)]),
            (True, [("1002", None), ("2000", None)]),
            (True, [(None, "3"), (None, "3")]),
            (True, [(None, "5")]),
        ],
        key=str,
    )


@pytest.mark.parametrize(
    ("kind", "value"), [(pa.timestamp("us"), 1_700_000_000_123_001), (pa.timestamp("us", "UTC"), 1_700_000_000_124_000)]
)
def test_a_time_is_the_first_millisecond_that_is_not_before_it(kind: pa.DataType, value: int) -> None:
    (chunk,) = chunks_of([rows(1, deliver_at=pa.array([value], kind))])
    assert records_of(chunk)[0].properties["TIMER_DELIVER_MS"] == "1700000000124"


@pytest.mark.parametrize(
    "columns",
    [
        {"delay_level": pa.array([-1])},
        {"deliver_at": pa.array([-0.5])},
        {"deliver_at": pa.array([float("nan")])},
        {"deliver_at": pa.array([float("inf")])},
        {"deliver_at": pa.array([1e300])},
        {"deliver_at": pa.array([-1_001], pa.timestamp("us", "UTC"))},
        {"deliver_at": pa.array([1.0]), "delay_level": pa.array([1])},
    ],
    ids=["level", "time", "nan", "inf", "huge", "timestamp", "both"],
)
def test_what_nobody_can_wait_for_is_refused(columns: dict[str, pa.Array]) -> None:
    with pytest.raises(InvalidInput):
        chunks_of([rows(1, **columns)])


@pytest.mark.parametrize("wrong", [-0.5, 1e11])
def test_one_time_that_cannot_be_is_refused_among_others(wrong: float) -> None:
    with pytest.raises(InvalidInput):
        chunks_of([rows(3, deliver_at=pa.array([1.0, wrong, 2.0]))])


def test_a_delay_that_leaves_no_room_for_the_properties_is_refused() -> None:
    wide = pa.array([[("k", "v" * 32_705)]], pa.map_(pa.string(), pa.string()))
    chunks_of([rows(1, properties=wide)])
    with pytest.raises(InvalidInput, match="properties"):
        chunks_of([rows(1, properties=wide, deliver_at=pa.array([1.0]))])
