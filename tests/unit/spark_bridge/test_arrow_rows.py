"""Test that Arrow bodies decoded as a batch equal those decoded one by one."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from raymq.client.arrow_body import decode_arrow_row
from raymq.spark_bridge.arrow_batch_decoder import ArrowBatchDecoder
from raymq.spark_bridge.body_decoder import ARROW, BodyDecoder

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("b", pa.binary()),
        ("ok", pa.bool_()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us", "UTC")),
        ("n", pa.decimal128(10, 2)),
        ("deep", pa.list_(pa.struct([("x", pa.int32())]))),
    ]
)
FLAT = pa.schema([field for field in SCHEMA if field.name != "deep"])


def stream(row: dict[str, Any], schema: pa.Schema = FLAT, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(pa.Table.from_pylist([row], schema=schema))
    return bytes(sink.getvalue())


def row(n: int) -> dict[str, Any]:
    values = {
        "i": (1 << 62) + n,
        "f": float("inf") if n % 7 == 0 else n / 3,
        "s": "käse" * (n % 5),
        "b": bytes([n % 256]) * (n % 9),
        "ok": n % 2 == 0,
        "d": dt.date(1, 1, 1) + dt.timedelta(days=n),
        "t": dt.datetime(9999, 12, 31, 23, 59, 59, 999_999 - n, tzinfo=dt.UTC),
        "n": Decimal(n) / 4,
    }
    return {name: None if (n + place) % 11 == 0 else value for place, (name, value) in enumerate(values.items())}


#: Bodies that the batch decoder leaves, though some of them have values.
ODD = {
    "another type": stream({"i": 3}, pa.schema([("i", pa.int32())])),
    "text for a number": stream({"i": "3"}, pa.schema([("i", pa.string())])),
    "nested": stream({"deep": [{"x": 1}, None]}, pa.schema([("deep", SCHEMA.field("deep").type)])),
    "compressed": stream(row(1), compression="zstd"),
    "a name twice": stream({}, pa.schema([("i", pa.int64()), ("i", pa.int64())])),
    "two rows": b"",
    "cut off": stream(row(2))[:-300],
    "no stream": b"{}",
    "more behind": stream(row(3))[:-8] + stream(row(3)),
    "a year that Python has not": stream({"t": 300_000_000_000_000_000}, pa.schema([("t", pa.timestamp("us", "UTC"))])),
}
sink = pa.BufferOutputStream()
with pa.ipc.new_stream(sink, FLAT) as two:
    two.write_table(pa.Table.from_pylist([row(1), row(2)], schema=FLAT))
ODD["two rows"] = bytes(sink.getvalue())


def decode_bodies(bodies: list[bytes]) -> list[dict[str, Any]]:
    decoder = BodyDecoder(SCHEMA, ARROW)
    columns = decoder.decode(pa.array(bodies, pa.binary()), pa.nulls(len(bodies), pa.string()))
    return pa.Table.from_arrays(columns, decoder.names).to_pylist()


def decode_singly(body: bytes) -> dict[str, Any]:
    decoder = BodyDecoder(SCHEMA, ARROW)
    values = decoder._one_by_one(pa.array([body], pa.binary()), decode_arrow_row)
    value = values[0].as_py()
    return {**(value or dict.fromkeys(SCHEMA.names)), "_corrupt": body if value is None else None}


def test_streams_of_one_schema_are_decoded_in_one_batch() -> None:
    bodies = [stream(row(n)) for n in range(500)]
    taken, left = ArrowBatchDecoder(pa.struct(list(SCHEMA))).decode(pa.array(bodies, pa.binary()))
    assert (len(taken), len(left)) == (1, 0)
    assert decode_bodies(bodies) == [decode_singly(body) for body in bodies]


def test_batch_decoding_equals_single_decoding_in_order() -> None:
    bodies = [*(stream(row(n)) for n in range(60)), *ODD.values(), *ODD.values()]
    bodies += [
        stream({"s": f"{n}", "other": n}, pa.schema([("s", pa.string()), ("other", pa.int8())])) for n in range(9)
    ]
    random.Random(5).shuffle(bodies)
    assert decode_bodies(bodies) == [decode_singly(body) for body in bodies]


@pytest.mark.parametrize("odd", ODD)
def test_unsupported_streams_are_left_to_single_decoding(odd: str) -> None:
    taken, left = ArrowBatchDecoder(pa.struct(list(SCHEMA))).decode(pa.array([ODD[odd]] * 2, pa.binary()))
    assert (taken, left.tolist()) == ([], [0, 1])


def test_many_schemas_in_one_batch_are_decoded() -> None:
    bodies = [stream({"s": "x"}, pa.schema([("s", pa.string()), (f"c{n}", pa.int8())])) for n in range(200)]
    assert [each["s"] for each in decode_bodies(bodies)] == ["x"] * 200


def test_corrupt_stream_leaves_streams_of_same_schema_intact() -> None:
    good = stream({"s": "Z" * 40}, pa.schema([("s", pa.string())]))
    bad = good.replace(b"Z" * 40, b"\xff" * 40)
    found = decode_bodies([good, bad, good])
    assert [each["_corrupt"] for each in found] == [None, bad, None]
    assert [each["s"] for each in found] == ["Z" * 40, None, "Z" * 40]
