"""Test that Arrow's JSON parser and the value-by-value loop decode bodies alike."""

from __future__ import annotations

import base64
import datetime as dt
import json
import pickle
import struct
import subprocess
import sys
from decimal import Decimal
from random import Random
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raymq.client.errors import InvalidInput
from raymq.spark_bridge import body_decoder
from raymq.spark_bridge.body_decoder import ARROW, JSON, MSGPACK, BodyDecoder
from raymq.storage.records.body_compression import MAX_DECOMPRESSED_BYTES

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("d", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("l", pa.list_(pa.int32())),
        ("o", pa.struct([("x", pa.int64()), ("y", pa.string())])),
    ]
)


def add_ignored_field(written: str, value: str) -> str:
    """Add a field to the object that no schema names."""
    return f'{{"ignored": {value}' + (", " if written != "{}" else "") + written[1:]


scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=6)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.sampled_from(["i", "d", "s", "b", "l", "o", "other"]), values, max_size=5)
good = st.fixed_dictionaries(
    {},
    optional={
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "d": st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**40), 2**40),
        "s": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        "b": st.none() | st.booleans(),
        "l": st.none() | st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=3),
        "o": st.none() | st.fixed_dictionaries({"x": st.integers(-5, 5)}, optional={"y": st.text("ab", max_size=3)}),
    },
)
written = st.one_of(
    good.map(json.dumps),
    good.map(lambda v: json.dumps(v, indent=1)),
    good.map(lambda v: json.dumps(v, ensure_ascii=False)),
    objects.map(json.dumps),
    st.text('{}[]":,1 \nabil', max_size=12),
    st.lists(good.map(json.dumps), min_size=2, max_size=2).map("".join),
    st.tuples(good.map(json.dumps), st.integers(0, 9_000)).map(
        lambda v: add_ignored_field(v[0], "[" * v[1] + "]" * v[1])
    ),
    st.tuples(good.map(json.dumps), st.integers(1, 9_000)).map(lambda v: add_ignored_field(v[0], "7" * v[1])),
    st.integers(1, 9_000).map(lambda digits: '{"d": -' + "7" * digits + "}"),
)
broken_texts = st.binary(max_size=4).map(lambda octets: b'{"s": "' + octets + b'", "i": 3}')
bodies_of_json = st.lists(
    written.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=8) | broken_texts
)


def decode_rows(rows: list[bytes], kind: str | None = None, schema: pa.Schema = SCHEMA) -> list[dict[str, Any]]:
    decoder = BodyDecoder(schema, JSON)
    columns = decoder.decode(pa.array(rows, pa.binary()), pa.array([kind] * len(rows), pa.string()))
    return pa.Table.from_arrays(columns, names=[*schema.names, "_corrupt"]).to_pylist()


def decode_rows_singly(rows: list[bytes], schema: pa.Schema = SCHEMA) -> list[dict[str, Any]]:
    decoder = BodyDecoder(schema, JSON)
    decoder._direct = False
    columns = decoder.decode(pa.array(rows, pa.binary()), pa.nulls(len(rows), pa.string()))
    return pa.Table.from_arrays(columns, names=[*schema.names, "_corrupt"]).to_pylist()


@pytest.mark.parametrize("octet", range(128))
def test_parser_and_loop_agree_on_each_character(octet: int) -> None:
    rows = [b'{"s": "' + bytes([octet]) + b'", "i": 3}', b'{"s": "a",' + bytes([octet]) + b'"i": 3}']
    for row in rows:
        assert decode_rows([row]) == decode_rows_singly([row])


@settings(deadline=None, max_examples=100)
@given(bodies_of_json)
def test_parser_and_loop_agree_on_any_bodies(rows: list[bytes]) -> None:
    # repr: NaN is not equal to itself
    assert repr(decode_rows(rows)) == repr(decode_rows_singly(rows))


@settings(deadline=None)
@given(st.lists(good, min_size=1, max_size=20))
def test_valid_objects_round_trip(rows: list[dict[str, Any]]) -> None:
    found = decode_rows([json.dumps(row).encode() for row in rows])
    for row, each in zip(rows, found, strict=True):
        assert each["_corrupt"] is None
        for name, value in row.items():
            expected = {"y": None} | value if name == "o" and value is not None else value
            assert each[name] == expected


def test_corrupt_bodies_are_kept_and_other_rows_decoded() -> None:
    rows = [json.dumps({"i": n}).encode() for n in range(1000)]
    bad = {0: b"", 17: b"no json", 500: b'{"i": "17"}', 501: b'{"i": 1}{"i": 2}', 502: b"[1]", 999: b'{"i": 1'}
    for row, body in bad.items():
        rows[row] = body
    found = decode_rows(rows)
    assert {n: row["_corrupt"] for n, row in enumerate(found) if row["_corrupt"] is not None} == bad
    assert [row["i"] for row in found] == [None if n in bad else n for n in range(1000)]


def test_object_split_over_two_bodies_is_two_corrupt_bodies() -> None:
    # Joined by a line break the first two would be one object, and the third two: three in all.
    rows = [b'{"o": ', b'{"x": 1}}', b'{"i": 1}{"i": 2}']
    assert [row["_corrupt"] for row in decode_rows(rows)] == rows


@pytest.mark.parametrize(
    "body", [b"NaN", b'{"d": NaN}', b'{"d": Infinity}', b'{"i": 1e400}', b'{"i": true}', b'{"b": 1}', b'{"l": {}}']
)
def test_value_of_wrong_type_is_corrupt(body: bytes) -> None:
    assert decode_rows([body])[0]["_corrupt"] == body
    assert decode_rows_singly([body])[0]["_corrupt"] == body


def test_string_column_takes_other_values_as_text() -> None:
    rows = [b'{"s": 12}', b'{"s": true}', b'{"s": {"a": [1, 2]}}', b'{"s": 1.50}']
    assert [row["s"] for row in decode_rows(rows)] == ["12", "true", '{"a":[1,2]}', "1.5"]


def test_each_message_is_decoded_by_its_content_type() -> None:
    value = {"i": 7, "s": "x"}
    row = pa.RecordBatch.from_pylist([value])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as stream:
        stream.write_batch(row)
    as_arrow = sink.getvalue().to_pybytes()
    as_json, packed = json.dumps(value).encode(), msgpack.packb(value)
    bodies = [as_json, packed, as_arrow, as_json, packed, b"text"]
    kinds = [None, MSGPACK, ARROW, "application/json; charset=utf-8", None, "text/plain"]
    decoder = BodyDecoder(SCHEMA, JSON)
    columns = decoder.decode(pa.array(bodies), pa.array(kinds, pa.string()))
    assert columns[0].to_pylist() == [7, 7, 7, 7, None, None]
    assert columns[-1].to_pylist() == [None, None, None, None, packed, b"text"]
    default = BodyDecoder(SCHEMA, MSGPACK).decode(pa.array([packed]), pa.nulls(1, pa.string()))
    assert default[0].to_pylist() == [7]


def test_passes_do_not_grow_with_number_of_content_types(monkeypatch: pytest.MonkeyPatch) -> None:
    # One pass for each content type made a batch of 60,000 types take 4 s.
    passes = 0
    look = body_decoder.np.flatnonzero

    def counted(mask: Any) -> Any:
        nonlocal passes
        passes += 1
        return look(mask)

    monkeypatch.setattr(body_decoder.np, "flatnonzero", counted)
    bodies = [b'{"i": %d}' % n for n in range(3_000)]
    kinds = [f"application/JSON ; n={n}" if n % 2 else f"text/x-{n}" for n in range(3_000)]
    columns = BodyDecoder(SCHEMA, JSON).decode(pa.array(bodies), pa.array(kinds))
    assert columns[0].to_pylist() == [n if n % 2 else None for n in range(3_000)]
    assert columns[-1].to_pylist() == [None if n % 2 else bodies[n] for n in range(3_000)]
    assert passes < 20


def test_times_decimals_binary_and_maps_are_decoded() -> None:
    schema = pa.schema(
        [
            ("t", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("price", pa.decimal128(10, 2)),
            ("raw", pa.binary()),
            ("m", pa.map_(pa.string(), pa.int64())),
        ]
    )
    moment = dt.datetime(2024, 5, 6, 7, 8, 9, tzinfo=dt.UTC)
    body = {"t": "2024-05-06T07:08:09Z", "day": "2024-05-06", "price": 12.5, "m": {"a": 1}}
    body["raw"] = base64.b64encode(b"\xff").decode()
    packed = {"t": moment, "price": "12.50", "raw": b"\xff", "m": {"a": 1}}
    (row,) = decode_rows([json.dumps(body).encode()], schema=schema)
    assert (row["t"], row["day"], row["price"]) == (moment, dt.date(2024, 5, 6), Decimal("12.50"))
    assert (row["raw"], row["m"], row["_corrupt"]) == (b"\xff", [("a", 1)], None)
    (row,) = decode_rows([msgpack.packb(packed, datetime=True)], MSGPACK, schema)
    assert (row["t"], row["price"], row["raw"], row["_corrupt"]) == (moment, Decimal("12.50"), b"\xff", None)
    assert decode_rows([b'{"price": 1.234}'], schema=schema)[0]["_corrupt"] == b'{"price": 1.234}'


def test_deep_nesting_is_corrupt() -> None:
    body = b'{"l": ' + b"[" * 100_000
    assert decode_rows([body])[0]["_corrupt"] == body


def test_pickled_decoder_decodes_an_empty_batch() -> None:
    decoder: BodyDecoder = pickle.loads(pickle.dumps(BodyDecoder(SCHEMA, JSON)))
    columns = decoder.decode(pa.array([], pa.binary()), pa.array([], pa.string()))
    assert [len(column) for column in columns] == [0] * 7
    assert columns[-1].type == pa.binary()


GOOD = b'{"a": "good", "i": 1, "p": "1.5"}'
SMALL = pa.schema([("a", pa.string()), ("i", pa.int64()), ("p", pa.decimal128(10, 2))])


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"p": "NaN"}', id="a decimal that is no number"),
        pytest.param(b'{"p": "sNaN"}', id="a decimal that signals"),
        pytest.param(b'{"p": "Infinity"}', id="an endless decimal"),
        pytest.param(b'{"a": ["\\ud800"]}', id="half of a surrogate pair within a value"),
        pytest.param(b'{"a": "\xff\xfe"}', id="text that is not UTF-8"),
        pytest.param(b'{"a": 1e400}', id="a number beyond all doubles as text"),
        pytest.param(b'{"a": ' + b"9" * 5000 + b"}", id="a number of too many digits as text"),
    ],
)
@pytest.mark.parametrize("schema", [SMALL, pa.schema([("n", pa.struct(list(SMALL)))])], ids=["flat", "nested"])
def test_value_beyond_the_column_type_corrupts_only_its_row(schema: pa.Schema, body: bytes) -> None:
    nested = schema.names == ["n"]
    rows = [b'{"n": ' + each + b"}" if nested else each for each in (GOOD, body, GOOD)]
    found = decode_rows(rows, schema=schema)
    assert [row["_corrupt"] for row in found] == [None, rows[1], None]
    values = [row["n"] if nested else row for row in found]
    assert [values[n]["a"] for n in (0, 2)] == ["good", "good"]
    assert decode_rows([rows[1]], schema=schema)[0]["_corrupt"] == rows[1]


def test_row_that_arrow_refuses_leaves_other_rows_intact(monkeypatch: pytest.MonkeyPatch) -> None:
    def lenient(value: dict[str, Any]) -> dict[str, Any]:
        return {"p": Decimal(value["p"])}

    decoder = BodyDecoder(pa.schema([("p", pa.decimal128(4, 2))]), JSON)
    monkeypatch.setattr(decoder, "_convert", lenient)
    rows = [b'{"p": "1.5"}', b'{"p": "NaN"}', b'{"p": "12345.6"}', b'{"p": "2.5"}']
    columns = decoder.decode(pa.array(rows), pa.nulls(4, pa.string()))
    assert columns[0].to_pylist() == [Decimal("1.5"), None, None, Decimal("2.5")]
    assert columns[1].to_pylist() == [None, rows[1], rows[2], None]


def stream_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(("first", "last"), [(0, 0x7FFFFFFF), (0, 4000), (-4000, 40), (40, 0)])
def test_arrow_body_with_forged_offsets_is_corrupt(first: int, last: int) -> None:
    good = stream_of(pa.table({"a": ["Z" * 40]}))
    at = good.rindex(struct.pack("<ii", 0, 40))
    forged = good[:at] + struct.pack("<ii", first, last) + good[at + 8 :]
    # Use a separate process: reading forged offsets may crash it.
    program = """
import sys
import pyarrow as pa
from raymq.spark_bridge.body_decoder import ARROW, BodyDecoder
bodies = pa.array([bytes.fromhex(each) for each in sys.stdin.read().split()])
columns = BodyDecoder(pa.schema([("a", pa.string())]), ARROW).decode(bodies, pa.nulls(len(bodies), pa.string()))
print(columns[0].to_pylist() == ["Z" * 40, None, "Z" * 40], columns[1].is_valid().to_pylist())
"""
    given = "\n".join(each.hex() for each in (good, forged, good))
    done = subprocess.run(
        [sys.executable, "-c", program], input=given, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["True", "[False,", "True,", "False]"]), done.stderr


def test_arrow_body_claiming_more_values_than_bytes_is_corrupt() -> None:
    # A column of nulls has no bytes, however long it is.
    many = pa.table({"a": pa.ListArray.from_arrays(pa.array([0, 50_000_000], pa.int32()), pa.nulls(50_000_000))})
    body = stream_of(many)
    assert len(body) < 1000
    schema = pa.schema([("a", pa.list_(pa.int64()))])
    assert decode_rows([body], ARROW, schema)[0]["_corrupt"] == body
    few = stream_of(pa.table({"a": pa.array([[1, None, 3]]), "t": pa.array(["x"]).dictionary_encode()}))
    (row,) = decode_rows([few], ARROW, pa.schema([("a", pa.list_(pa.int64())), ("t", pa.string())]))
    assert row == {"a": [1, None, 3], "t": "x", "_corrupt": None}


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_arrow_body_is_decoded_up_to_a_size_limit(codec: str) -> None:
    def packed(table: pa.Table) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as stream:
            stream.write_table(table)
        return bytes(sink.getvalue())

    def named(text: str) -> pa.Table:
        return pa.table({"a": [text], "d": pa.array([text]).dictionary_encode(), "n": pa.nulls(1, pa.int64())})

    schema = pa.schema([("a", pa.string()), ("d", pa.string()), ("n", pa.int64())])
    half = MAX_DECOMPRESSED_BYTES // 2  # the bytes of each of two columns
    good, bomb = packed(named("Z" * (half - 10_000))), packed(named("Z" * (half + 10_000)))
    assert len(bomb) < 1_000_000
    pa.default_memory_pool().release_unused()
    rows = decode_rows([good, bomb, good], ARROW, schema)
    assert [row["_corrupt"] for row in rows] == [None, bomb, None]
    assert [row["d"] == row["a"] == "Z" * (half - 10_000) for row in rows] == [True, False, True]


def test_arrow_body_with_unknown_time_zone_is_corrupt() -> None:
    known, unknown = (
        stream_of(pa.table({"t": pa.array([0], pa.timestamp("us", zone))})) for zone in ("UTC", "No/Where")
    )
    rows = decode_rows([known, unknown], ARROW, pa.schema([("t", pa.timestamp("us", "UTC"))]))
    assert [row["_corrupt"] for row in rows] == [None, unknown]


def test_memory_error_is_raised_and_not_taken_as_corruption(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(_: Any) -> None:
        raise MemoryError

    decoder = BodyDecoder(SMALL, MSGPACK)
    monkeypatch.setattr(decoder, "_convert", exhausted)
    with pytest.raises(MemoryError):
        decoder.decode(pa.array([msgpack.packb({"a": "x"})]), pa.nulls(1, pa.string()))


EVERY_TYPE = pa.schema(
    [
        ("t", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("p", pa.decimal128(6, 2)),
        ("raw", pa.binary()),
        ("m", pa.map_(pa.string(), pa.map_(pa.int32(), pa.string()))),
        ("s", pa.string()),
        ("f", pa.float32()),
        ("n", pa.null()),
        ("l", pa.list_(pa.struct([("x", pa.int8()), ("d", pa.decimal128(38, 0))]))),
    ]
)
texts = st.sampled_from(
    ["2024-05-06", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "AA==", "1e9999", "NaN", "\ud800"]
)
anything = st.recursive(
    scalars | texts | st.binary(max_size=4) | st.datetimes(timezones=st.just(dt.UTC)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["x", "d", "1"]) | st.integers(0, 3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(EVERY_TYPE.names), anything, max_size=4), max_size=6), st.binary())
def test_row_value_does_not_depend_on_other_rows(rows: list[dict[str, Any]], other: bytes) -> None:
    pack = msgpack.Packer(datetime=True, default=str, unicode_errors="surrogatepass").pack
    for kind, bodies in (
        (MSGPACK, [*map(pack, filter(fits_msgpack, rows)), other]),
        (JSON, [*(json.dumps(row, default=str, skipkeys=True).encode() for row in rows), other]),
    ):
        together = decode_rows(bodies, kind, EVERY_TYPE)
        assert repr(together) == repr([decode_rows([body], kind, EVERY_TYPE)[0] for body in bodies])


def fits_msgpack(value: Any) -> bool:
    try:
        msgpack.packb(value, datetime=True, default=str, unicode_errors="surrogatepass")
    except OverflowError:  # an integer of more than 64 bits
        return False
    return True


def test_fuzzed_arrow_bytes_give_a_value_or_corrupt() -> None:
    table = pa.table({"a": ["text"], "l": [[1, 2]], "d": pa.array(["x"]).dictionary_encode()})
    schema = pa.schema([("a", pa.string()), ("l", pa.list_(pa.int64())), ("d", pa.string())])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(table)
    random = Random(7)
    for good in (stream_of(table), bytes(sink.getvalue())):
        bodies = [good[: random.randrange(len(good))] for _ in range(200)]
        for _ in range(3_000):
            broken = bytearray(good)
            for _ in range(random.randrange(1, 4)):
                broken[random.randrange(len(broken))] = random.choice([0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)])
            bodies.append(bytes(broken))
        rows = decode_rows(bodies, ARROW, schema)
        assert len(rows) == len(bodies)


def test_schema_with_unsupported_type_raises_invalid_input() -> None:
    for kind in (pa.duration("us"), pa.list_(pa.duration("us"))):
        with pytest.raises(InvalidInput, match="schema"):
            BodyDecoder(pa.schema([("a", kind)]), JSON)


def test_sliced_array_decodes_only_its_slice() -> None:
    rows = pa.array([b'{"i": 1}', b'{"i": 2}', b'{"i": 3}']).slice(1)
    assert BodyDecoder(SCHEMA, JSON).decode(rows, pa.nulls(2, pa.string()))[0].to_pylist() == [2, 3]


def test_format_names_map_to_content_types() -> None:
    assert body_decoder.FORMATS == {"json": JSON, "msgpack": MSGPACK, "arrow": ARROW}
