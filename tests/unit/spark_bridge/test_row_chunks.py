"""Test the chunks that a write's task builds: queue, order, and number of chunks."""

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
from raymq.spark_bridge.row_staging import NO_KEY, ChunkBuilder, RecordChunk, queues_for_keys
from raymq.storage.records import record

QUEUES = [MessageQueue("t", broker, number) for broker in ("a", "b") for number in range(3)]
TEXTS = pa.map_(pa.string(), pa.string())


def build_chunks(
    tables: Sequence[pa.Table], first: int = 0, queues: Sequence[MessageQueue] = QUEUES
) -> list[RecordChunk]:
    maker = ChunkBuilder(queues, first, tables[0].column_names)
    return [*(chunk for table in tables for chunk in maker.add(table)), *maker.flush()]


def decode_records(chunk: RecordChunk) -> list[record.Record]:
    starts = (np.cumsum(chunk.sizes) - chunk.sizes).tolist()
    return [record.decode(chunk.records, start) for start in starts]


def rows(count: int, **columns: Any) -> pa.Table:
    return pa.table({"body": [b"%06d" % n for n in range(count)], **columns})


def test_rows_of_small_batches_share_a_chunk() -> None:
    table = rows(20_000)
    chunks = build_chunks([table.slice(at, 100) for at in range(0, 20_000, 100)])
    assert len(chunks) < 8
    assert [each.body for chunk in chunks for each in decode_records(chunk)] == table.column("body").to_pylist()


def test_large_partition_fills_chunks_over_all_queues() -> None:
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
def test_memory_does_not_grow_with_the_partition(columns: list[str]) -> None:
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
    # Two partitions of a few rows used to go to the same two queues with each write.
    used = Counter(
        chunk.queue for first in range(600) for part in range(2) for chunk in build_chunks([rows(3)], 7 * first + part)
    )
    assert set(used) == set(QUEUES)
    assert max(used.values()) <= 2 * min(used.values())
    for first in range(6):
        pair = [build_chunks([rows(3)], first + part)[0].queue.broker for part in range(2)]
        assert set(pair) == {"a", "b"}, "neighbours are on different brokers"


@pytest.mark.parametrize("column", ["keys", "sharding_key"])
def test_rows_of_a_key_keep_order_in_the_producers_queue(column: str) -> None:
    keys = [f"customer-{n % 37}" if n % 5 else f"käse-{n % 7}" for n in range(5_000)]
    by_key: dict[str, list[bytes]] = defaultdict(list)
    for n, key in enumerate(keys):
        by_key[key].append(b"%06d" % n)
    found: dict[str, list[bytes]] = defaultdict(list)
    table = rows(5_000, **{column: keys})
    for chunk in build_chunks([table.slice(at, 700) for at in range(0, 5_000, 700)], first=3):
        for each in decode_records(chunk):
            key = keys[int(each.body)]
            assert chunk.queue == queue_of_sharding_key(sorted(QUEUES), key)
            assert (each.topic, each.queue_id) == (chunk.queue.topic, chunk.queue.queue_id)
            found[key].append(each.body)
    assert found == by_key


def test_sharding_key_takes_precedence_over_first_key() -> None:
    both = rows(3, keys=[["x"], ["y"], ["z"]], sharding_key=["s", "s", "s"])
    assert {chunk.queue for chunk in build_chunks([both])} == {queue_of_sharding_key(sorted(QUEUES), "s")}
    lists = rows(4, keys=pa.array([["s", "x"], ["s"], [], None], pa.list_(pa.string())))
    (keyed,) = [
        chunk
        for chunk in build_chunks([lists])
        if len(chunk.sizes) == 2 and chunk.queue == build_chunks([both])[0].queue
    ]
    assert [each.body for each in decode_records(keyed)] == [b"000000", b"000001"]


def test_rows_without_a_key_use_all_queues() -> None:
    table = rows(4, sharding_key=pa.array([None, "s", "", None]))
    queues = {chunk.queue: len(chunk.sizes) for first in range(6) for chunk in build_chunks([table], first)}
    assert set(queues) == set(QUEUES)


@given(st.lists(st.none() | st.text(max_size=12)), st.integers(1, 64))
def test_queue_of_a_key_equals_the_producers_choice(keys: list[str | None], count: int) -> None:
    queues = [MessageQueue("t", "a", number) for number in range(count)]
    expected = [queue_of_sharding_key(queues, key).queue_id if key else NO_KEY for key in keys]
    assert queues_for_keys(pa.array(keys, pa.string()), count).tolist() == expected


def to_large_types(column: pa.Array) -> pa.Array:
    """Convert to the types Spark uses with spark.sql.execution.arrow.useLargeVarTypes."""
    if pa.types.is_list(column.type):
        return column.cast(pa.list_(pa.large_string()))
    if pa.types.is_map(column.type):
        return pa.array(column.to_pylist(), pa.map_(pa.large_string(), pa.large_string()))
    return column.cast(pa.large_string())


@pytest.mark.parametrize("column", ["sharding_key", "keys", "lists of keys"])
def test_large_arrow_types_give_equal_chunks(column: str) -> None:
    # Large offsets were read as small ones, so that rows of one key went to different queues.
    texts = [f"key-{n % 9}" if n % 5 else None for n in range(200)]
    lists = [[key, "second"] if key else [] for key in texts]
    keys = pa.array(lists if column == "lists of keys" else texts)
    name = "sharding_key" if column == "sharding_key" else "keys"
    texts_of_all = {"tags": pa.array(["tag"] * 200), "properties": pa.array([[("a", "1"), ("b", None)]] * 200, TEXTS)}
    columns = {name: keys, **texts_of_all}

    def contents(table: pa.Table) -> list[tuple[MessageQueue, list[tuple[bytes, dict[str, str]]]]]:
        return [
            (chunk.queue, [(each.body, {**each.properties, "UNIQ_KEY": ""}) for each in decode_records(chunk)])
            for chunk in build_chunks([table])
        ]

    assert contents(rows(200, **{name: to_large_types(each) for name, each in columns.items()})) == contents(
        rows(200, **columns)
    )


def test_delayed_rows_are_grouped_by_their_delay() -> None:
    at = pa.array([None, 1.0015, 2, None, None, None])
    levels = pa.array([None, 0, None, 3, 3, 5], pa.int32())
    chunks = build_chunks([rows(6, deliver_at=at, delay_level=levels)])
    contents = [(chunk.delayed, [each.properties for each in decode_records(chunk)]) for chunk in chunks]
    waits = [
        (delayed, [(each.get("TIMER_DELIVER_MS"), each.get("DELAY")) for each in properties])
        for delayed, properties in contents
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
def test_deliver_at_is_rounded_up_to_milliseconds(kind: pa.DataType, value: int) -> None:
    (chunk,) = build_chunks([rows(1, deliver_at=pa.array([value], kind))])
    assert decode_records(chunk)[0].properties["TIMER_DELIVER_MS"] == "1700000000124"


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
def test_invalid_delay_is_refused(columns: dict[str, pa.Array]) -> None:
    with pytest.raises(InvalidInput):
        build_chunks([rows(1, **columns)])


@pytest.mark.parametrize("wrong", [-0.5, 1e11])
def test_invalid_time_among_valid_ones_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidInput):
        build_chunks([rows(3, deliver_at=pa.array([1.0, wrong, 2.0]))])


def test_properties_too_large_with_a_delay_are_refused() -> None:
    wide = pa.array([[("k", "v" * 32_705)]], pa.map_(pa.string(), pa.string()))
    build_chunks([rows(1, properties=wide)])
    with pytest.raises(InvalidInput, match="properties"):
        build_chunks([rows(1, properties=wide, deliver_at=pa.array([1.0]))])
