"""Test the tasks of Spark's Python workers without Spark and brokers."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any, ClassVar, Self, cast

import msgpack
import numpy as np
import pyarrow as pa
import pytest

from raymq.client import MessageQueue, RayMQError
from raymq.client.bulk.range_reader import ReadFence, ReadSpec
from raymq.spark_bridge import fetch_ranges, row_staging
from raymq.spark_bridge.fetch_ranges import ENVELOPE, FetchRanges, envelope_column
from raymq.spark_bridge.offset_ranges import OffsetRange, split_ranges
from raymq.spark_bridge.row_staging import StageRows
from raymq.storage.records import record
from raymq.storage.records.record_table import records_from_table, table_from_records
from raymq.storage.records.unique_key_generator import UniqueKeyGenerator

A, B = MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-b", 0)


def message_table(queue: MessageQueue, first: int, count: int) -> pa.Table:
    """Return a table of messages as a broker serves them."""
    bodies = pa.table({"b": [b"%d" % n for n in range(first, first + count)]})
    records, sizes = records_from_table(bodies, topic="t", queue_id=0, body="b", unique_keys=UniqueKeyGenerator())
    data = bytearray(records)
    for number, start in enumerate((np.cumsum(sizes) - sizes).tolist()):
        record.QUEUE_AND_PHYSICAL_OFFSET.pack_into(data, start + record.OFFSET_QUEUE_OFFSET, first + number, 0)
    return table_from_records(data, sizes, broker=queue.broker)


class FakeReader:
    """Serve ranges in tables of up to three messages, without those from `missing`."""

    missing: int | None = None

    def __init__(self, name_servers: Any, tls: None) -> None:
        assert name_servers == ("host:1",)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...

    def table(self, queue: MessageQueue, start: int, end: int, spec: ReadSpec, _: ReadFence) -> Iterator[pa.Table]:
        for at in range(start, end, 3):
            if at != self.missing:
                yield message_table(queue, at, min(3, end - at))


def fetch(monkeypatch: pytest.MonkeyPatch, reader: type[FakeReader], numbers: list[int]) -> list[dict[str, Any]]:
    monkeypatch.setattr(fetch_ranges, "RangeReader", reader)
    names = (*ENVELOPE, "body")
    columns = [envelope_column(message_table(A, 0, 1), name).type for name in ENVELOPE]
    schema = pa.schema(list(zip(names, [*columns, pa.binary()], strict=True)))
    task = FetchRanges(("host:1",), (OffsetRange(A, 5, 12), OffsetRange(B, 0, 2)), schema, None)
    task = pickle.loads(pickle.dumps(task))
    batches = [pa.RecordBatch.from_arrays([pa.array(numbers)], names=["id"])]
    return [row for batch in task(iter(batches)) for row in batch.to_pylist()]


def test_row_numbers_select_their_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = fetch(monkeypatch, FakeReader, [1, 0])
    assert [(row["queue"]["broker"], row["offset"]) for row in rows] == [
        *(("broker-b", n) for n in range(2)),
        *(("broker-a", n) for n in range(5, 12)),
    ]
    assert [row["body"] for row in rows] == [b"%d" % row["offset"] for row in rows]


def test_columns_of_nulls_within_lists_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    # A batch with more nulls within lists than messages failed the read.

    class Decoder:
        names: ClassVar = ["v", "_corrupt"]

        def decode(self, bodies: pa.Array, _: pa.Array) -> list[pa.Array]:
            return [pa.array([[None, None]] * len(bodies), pa.list_(pa.null())), bodies]

    monkeypatch.setattr(fetch_ranges, "RangeReader", FakeReader)
    task = FetchRanges(
        ("host:1",), (OffsetRange(A, 0, 3),), pa.schema([("v", pa.list_(pa.null()))]), cast("Any", Decoder())
    )
    (batch,) = task(iter([pa.RecordBatch.from_arrays([pa.array([0])], names=["id"])]))
    batch.validate(full=True)
    assert batch.column(0).to_pylist() == [[None, None]] * 3


@pytest.mark.parametrize("missing", [5, 8, 11])
def test_missing_message_in_a_range_raises_an_error(monkeypatch: pytest.MonkeyPatch, missing: int) -> None:
    class Holes(FakeReader):
        pass

    Holes.missing = missing
    with pytest.raises(RayMQError):
        fetch(monkeypatch, Holes, [0])


class FakeWriter:
    """Keep staged chunks."""

    staged: ClassVar[list[tuple[str, str, int, MessageQueue, list[bytes]]]]

    def __init__(self, name_servers: Any, tls: None) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...

    def settle(self) -> None: ...

    def begin(
        self,
        transaction: str,
        part: str,
        number: int,
        queue: MessageQueue,
        records: Any,
        sizes: Any,
        *,
        coordinator: str,
        delayed: bool,
    ) -> None:
        assert not delayed
        assert coordinator == "home"
        assert len(records) <= 8 << 20
        starts = (np.cumsum(sizes) - sizes).tolist()
        bodies = [record.decode(records, start).body for start in starts]
        self.staged.append((transaction, part, number, queue, bodies))


def test_rows_are_staged_and_counted_by_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    class Writer(FakeWriter):
        staged: ClassVar[list[Any]] = []

    monkeypatch.setattr(row_staging, "StagedWriter", Writer)
    bodies = [bytes([n]) * (1 << 20) for n in range(10)]
    batch = pa.RecordBatch.from_arrays([pa.array(bodies)], names=["body"])
    task = pickle.loads(pickle.dumps(StageRows(("host:1",), "tx", (A, B), ("body",), coordinator="home")))
    (result,) = task(iter([batch, batch.slice(9)]))
    assert [body for *_, chunk in Writer.staged for body in chunk] == [*bodies, bodies[9]]
    assert [(transaction, number) for transaction, _, number, *_ in Writer.staged] == [("tx", n) for n in range(4)]
    queues = [queue for *_, queue, _ in Writer.staged]
    assert queues in ([A, B, A, B], [B, A, B, A])
    (part,) = {part for _, part, *_ in Writer.staged}
    rows = {each.broker: sum(len(chunk) for *_, queue, chunk in Writer.staged if queue == each) for each in queues}
    assert result.to_pylist() == [{"part": part, "broker": broker, "rows": count} for broker, count in rows.items()]
    assert sum(result.column("rows").to_pylist()) == 11


WIDE = pa.map_(pa.string(), pa.string())


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(
            {"body": pa.array([{"v": "y" * 1_500_000}] * 12 + [{"v": "s"}] * 2_036)}, id="large structs among small"
        ),
        pytest.param({"body": pa.array([b"x"] * 2_048), "keys": pa.array([["k" * 200] * 40] * 2_048)}, id="wide keys"),
        pytest.param(
            {"body": pa.array([b"x"] * 2_048), "properties": pa.array([[("k", "v" * 30_000)]] * 2_048, WIDE)},
            id="wide properties",
        ),
        pytest.param({"body": pa.array([b"x" * (4 << 20), b"y"] * 3)}, id="the largest bodies"),
        pytest.param({"body": pa.array([{"v": b"x" * ((4 << 20) - 9)}] * 3)}, id="the largest structs"),
    ],
)
def test_chunks_of_rows_of_any_size_fit_broker_limits(
    monkeypatch: pytest.MonkeyPatch, batch: dict[str, pa.Array]
) -> None:
    sizes_of_chunks = []

    class Writer(FakeWriter):
        staged: ClassVar[list[Any]] = []

        def begin(self, *chunk: Any, **options: Any) -> None:
            super().begin(*chunk, **options)
            *_, records, sizes = chunk
            assert len(records) == int(sizes.sum())
            assert len(records) <= 4 << 20 or len(sizes) == 1
            sizes_of_chunks.append(len(records))

    monkeypatch.setattr(row_staging, "StagedWriter", Writer)
    rows = pa.RecordBatch.from_pydict(batch)
    (result,) = StageRows(("host:1",), "tx", (A,), tuple(batch), coordinator="home")(iter([rows]))
    bodies = [body for *_, chunk in Writer.staged for body in chunk]
    assert bodies == [msgpack.packb(row) if isinstance(row, dict) else row for row in batch["body"].to_pylist()]
    assert result.column("rows").to_pylist() == [rows.num_rows]
    full = sum(sizes_of_chunks) // (4 << 20)
    assert len(sizes_of_chunks) <= 2 * full + 2, "a chunk is as full as the next row lets it be"


def test_empty_input_stages_no_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Writer(FakeWriter):
        staged: ClassVar[list[Any]] = []

    monkeypatch.setattr(row_staging, "StagedWriter", Writer)
    (result,) = StageRows(("host:1",), "tx", (A,), ("body",), coordinator="home")(iter([]))
    assert (result.num_rows, Writer.staged) == (0, [])


def test_ranges_are_split_for_available_tasks() -> None:
    whole = [OffsetRange(A, 7, 100_007), OffsetRange(B, 3, 3)]
    parts = split_ranges(whole, tasks=4)
    assert [(part.start, part.end) for part in parts] == [
        (7, 25_007), (25_007, 50_007), (50_007, 75_007), (75_007, 100_007)
    ]  # fmt: skip
    assert split_ranges([OffsetRange(A, 0, 12_000)], tasks=100) == [
        OffsetRange(A, 0, 10_000),
        OffsetRange(A, 10_000, 12_000),
    ]
    assert len(split_ranges([OffsetRange(A, 0, 10_000_000)], tasks=1)) == 40
    assert split_ranges([OffsetRange(A, 5, 5)], tasks=1) == []
