"""Arrow bodies that are decoded together give what they give one by one, and what is not for that way is left."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from raymq.spark_bridge.arrow_batch_decoder import ArrowBatchDecoder
from raymq.spark_bridge.arrow_body import decode_arrow_row
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


#: Bodies that are not for the quick way, though some have values.
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


def decoded(bodies: list[bytes]) -> list[dict[str, Any]]:
    decoder = BodyDecoder(SCHEMA, ARROW)
    columns = decoder.decode(pa.array(bodies, pa.binary()), pa.nulls(len(bodies), pa.string()))
    return pa.Table.from_arrays(columns, decoder.names).to_pylist()


def one_by_one(body: bytes) -> dict[str, Any]:
    decoder = BodyDecoder(SCHEMA, ARROW)
    values = decoder._one_by_one(pa.array([body], pa.binary()), decode_arrow_row)
    value = values[0].as_py()
    return {**(value or dict.fromkeys(SCHEMA.names)), "_corrupt": body if value is None else None}


def test_streams_that_are_alike_are_decoded_together() -> None:
    bodies = [stream(row(n)) for n in range(500)]
    taken, left = ArrowBatchDecoder(pa.struct(list(SCHEMA))).decode(pa.array(bodies, pa.binary()))
    assert (len(taken), len(left)) == (1, 0)
    assert decoded(bodies) == [one_by_one(body) for body in bodies]


def test_what_is_decoded_together_is_what_comes_one_by_one_in_the_same_order() -> None:
    bodies = [*(stream(row(n)) for n in range(60)), *ODD.values(), *ODD.values()]
    bodies += [
        stream({"s": f"{n}", "other": n}, pa.schema([("s", pa.string()), ("other", pa.int8())])) for n in range(9)
    ]
    random.Random(5).shuffle(bodies)
    assert decoded(bodies) == [one_by_one(body) for body in bodies]


@pytest.mark.parametrize("odd", ODD)
def test_what_is_odd_is_left(odd: str) -> None:
    taken, left = ArrowBatchDecoder(pa.struct(list(SCHEMA))).decode(pa.array([ODD[odd]] * 2, pa.binary()))
    assert (taken, left.tolist()) == ([], [0, 1])


def test_many_kinds_of_streams_are_decoded_all_the_same() -> None:
    bodies = [stream({"s": "x"}, pa.schema([("s", pa.string()), (f"c{n}", pa.int8())])) for n in range(200)]
    assert [each["s"] for each in decoded(bodies)] == ["x"] * 200


def test_one_bad_stream_does_not_spoil_those_like_it() -> None:
    good = stream({"s": "Z" * 40}, pa.schema([("s", pa.string())]))
    bad = good.replace(b"Z" * 40, b"\xff" * 40)
    found = decoded([good, bad, good])
    assert [each["_corrupt"] for each in found] == [None, bad, None]
    assert [each["s"] for each in found] == ["Z" * 40, None, "Z" * 40]
