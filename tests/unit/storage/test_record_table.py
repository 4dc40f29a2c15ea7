"""Test the Arrow codec against the scalar one: equal bytes out, equal values in."""

from __future__ import annotations

import datetime as dt
import random
import time
import zlib
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raymq.storage.errors import InvalidInput, StoreCorrupt
from raymq.storage.records import body_compression, record, record_table
from raymq.storage.records import property_names as names
from raymq.storage.records.property_columns import split_properties
from raymq.storage.records.record_table import checked_rows, records_from_table, table_from_records
from raymq.storage.records.unique_key_generator import UniqueKeyGenerator

pytestmark = pytest.mark.usefixtures("batch_code")

BORN_MS = 1_700_000_000_123
#: The years 2 to 9998.
FIRST_MS, LAST_MS = -62_104_060_800_000, 253_370_764_799_999
STORED_MS = 1_700_000_000_456
HOST = ("10.1.2.3", 10911)
MAP = pa.map_(pa.string(), pa.string())

# Text as a user may send it: anything that UTF-8 can express but the separators.
text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00\x01\x02"), min_size=1, max_size=12)
keys = st.lists(text.map(lambda t: t.replace(" ", "_")), max_size=3)
user = st.dictionaries(
    text.filter(lambda n: n not in names.SYSTEM_PROPERTIES and n != "content-type"), text, max_size=3
)
tags = st.none() | text.filter(lambda t: t.strip() and "||" not in t)
rows = st.lists(st.tuples(st.binary(min_size=1, max_size=40), keys, tags, st.none() | user), max_size=12)


class SameKeys(UniqueKeyGenerator):
    """Hand out keys that a test can predict."""

    def __init__(self) -> None:
        super().__init__(bytes(10))

    def reserve(self, count: int) -> int:
        return 0


def stored_record(
    body: bytes = b"body",
    properties: bytes = b"",
    *,
    topic: str = "orders",
    queue_id: int = 1,
    offset: int = 0,
    physical_offset: int = 0,
    sys_flag: int = 0,
    born_ms: int = BORN_MS,
    born_host: tuple[str, int] = HOST,
    reconsume_times: int = 0,
) -> bytes:
    """Encode a record as a broker stores it, with offsets and store host stamped."""
    data = bytearray(
        record.encode(
            topic,
            queue_id,
            body,
            properties,
            sys_flag=sys_flag,
            born_timestamp_ms=born_ms,
            born_host=born_host,
            reconsume_times=reconsume_times,
        )
    )
    shift = record.IPV6_SHIFT if ":" in born_host[0] else 0
    record.QUEUE_AND_PHYSICAL_OFFSET.pack_into(data, record.OFFSET_QUEUE_OFFSET, offset, physical_offset)
    record.STORE_TIMESTAMP.pack_into(data, record.OFFSET_STORE_TIMESTAMP + shift, STORED_MS)
    at = record.OFFSET_STORE_HOST + shift
    data[at : at + 8] = record.pack_host(*HOST)
    return bytes(data)


def table_of(records: list[bytes]) -> pa.Table:
    table = table_from_records(b"".join(records), np.array([len(r) for r in records], np.int32), broker="broker-a")
    table.validate(full=True)
    assert table.schema == record_table.SCHEMA
    return table


def split(buffer: memoryview, sizes: np.ndarray[Any, Any]) -> list[bytes]:
    ends = np.cumsum(sizes).tolist()
    return [bytes(buffer[end - size : end]) for end, size in zip(ends, sizes.tolist(), strict=True)]


@settings(deadline=None)
@given(rows, st.sampled_from(["t", "orders", "%RETRY%" + "g" * 121]), st.none() | st.just("application/json"))
def test_records_equal_the_scalar_codecs(
    messages: list[tuple[bytes, list[str], str | None, dict[str, str] | None]], topic: str, content_type: str | None
) -> None:
    table = pa.table(
        {
            "b": pa.array([m[0] for m in messages], pa.binary()),
            "k": pa.array([m[1] for m in messages], pa.list_(pa.string())),
            "t": pa.array([m[2] for m in messages], pa.string()),
            "p": pa.array([None if m[3] is None else list(m[3].items()) for m in messages], MAP),
        }
    )
    buffer, sizes = records_from_table(
        table,
        topic=topic,
        queue_id=7,
        body="b",
        keys="k",
        tags="t",
        properties="p",
        content_type=content_type,
        born_host=HOST,
        born_timestamp_ms=BORN_MS,
        unique_keys=SameKeys(),
    )
    expected = []
    for number, (body, message_keys, tag, own) in enumerate(messages):
        pairs = {names.UNIQ_KEY: f"{number:032X}"} | ({"content-type": content_type} if content_type else {})
        pairs |= own or {}
        pairs |= {names.KEYS: " ".join(message_keys)} if message_keys else {}
        pairs |= {names.TAGS: tag} if tag else {}
        encoded = record.encode_properties(pairs)
        expected.append(record.encode(topic, 7, body, encoded, born_timestamp_ms=BORN_MS, born_host=HOST))
    assert split(buffer, sizes) == expected


@settings(deadline=None)
@given(rows, st.booleans())
def test_table_values_equal_the_scalar_codecs(
    messages: list[tuple[bytes, list[str], str | None, dict[str, str] | None]], ipv6: bool
) -> None:
    records = []
    for number, (body, message_keys, tag, own) in enumerate(messages):
        pairs = {"WAIT": "true"} | (own or {})
        pairs |= {names.KEYS: "  ".join(message_keys)} if message_keys else {}
        pairs |= {names.TAGS: tag, names.UNIQ_KEY: f"{number:032X}"} if tag else {}
        host = ("fe80::1", 1) if ipv6 and number % 2 else HOST
        topic = "orders" if number % 3 else "x" * 127
        encoded = record.encode_properties(pairs)
        records.append(
            stored_record(body, encoded, topic=topic, offset=number, physical_offset=number << 33, born_host=host)
        )
    table = table_of(records)
    decoded = [record.decode(data) for data in records]
    assert table.num_rows == len(decoded)
    for row, message in zip(table.to_pylist(), decoded, strict=True):
        assert row["topic"] == message.topic
        assert (row["broker"], row["queue_id"], row["offset"]) == ("broker-a", 1, message.queue_offset)
        assert row["message_id"] == message.message_id
        assert row["unique_key"] == message.unique_key
        assert row["keys"] == message.keys
        assert row["tags"] == message.tags
        assert dict(row["properties"]) == {
            name: value for name, value in message.properties.items() if name not in names.SYSTEM_PROPERTIES
        }
        assert row["born_timestamp"].timestamp() * 1000 == pytest.approx(BORN_MS)
        assert row["store_timestamp"].timestamp() * 1000 == pytest.approx(STORED_MS)
        assert row["body"] == message.body


@settings(deadline=None)
@given(
    st.lists(st.binary(max_size=30) | st.lists(st.sampled_from([b"a", b"\x01", b"\x02", b" ", b"\xff"])).map(b"".join))
)
def test_properties_of_any_bytes_are_split_like_scalar_codec(blocks: list[bytes]) -> None:
    parsed = split_properties(pa.array(blocks, pa.binary()))
    wanted = [record.decode_properties(block) for block in blocks]
    assert [dict(row) for row in parsed.user().to_pylist()] == [
        {name: value for name, value in row.items() if name not in names.SYSTEM_PROPERTIES} for row in wanted
    ]


def test_batch_member_keeps_unique_key_and_last_duplicates() -> None:
    properties = b"UNIQ_KEY\x01OWN\x02a\x011\x02UNIQ_KEY\x01BATCH\x02a\x012\x02TAGS\x01x\x02TAGS\x01y\x02"
    (row,) = table_of([stored_record(properties=properties)]).to_pylist()
    assert (row["unique_key"], row["tags"], row["properties"]) == ("OWN", "y", [("a", "2")])


def test_missing_fields_are_null_except_keys_and_properties() -> None:
    (row,) = table_of([stored_record()]).to_pylist()
    assert (row["unique_key"], row["tags"], row["keys"], row["properties"]) == (None, None, [], [])


def test_retried_messages_show_the_topic_and_id_of_their_original() -> None:
    pairs = {names.RETRY_TOPIC: "orders", names.ORIGIN_MESSAGE_ID: "0A" * 16, names.DELAY: "3", "k": "v"}
    retried = stored_record(properties=record.encode_properties(pairs), topic="%RETRY%billing", reconsume_times=1)
    plain = stored_record(topic="%RETRY%billing", physical_offset=5)
    rows = table_of([retried, plain]).to_pylist()
    assert [row["topic"] for row in rows] == ["orders", "%RETRY%billing"]
    assert [row["message_id"] for row in rows] == ["0A" * 16, record.decode(plain).message_id]
    assert rows[0]["properties"] == [("k", "v")]


def test_ipv6_store_host_gives_the_long_message_id() -> None:
    data = stored_record(physical_offset=77)
    at = record.OFFSET_STORE_HOST
    longer = bytearray(data[:at] + record.pack_host("fe80::2", 10911) + data[at + 8 :])
    longer[:4] = len(longer).to_bytes(4, "big")
    longer[record.OFFSET_SYS_FLAG : record.OFFSET_SYS_FLAG + 4] = record.SYS_FLAG_STORE_IPV6.to_bytes(4, "big")
    rows = table_of([data, bytes(longer)]).to_pylist()
    assert [row["message_id"] for row in rows] == [record.decode(d).message_id for d in (data, bytes(longer))]
    assert len(rows[1]["message_id"]) == 56


@pytest.mark.parametrize(("kind", "flag"), [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)])
def test_compressed_bodies_are_decompressed(kind: str, flag: int) -> None:
    plain = b"many the same bytes " * 400
    if kind == "zlib":
        body = zlib.compress(plain, 5)
    else:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, kind) as stream:
            stream.write(plain)
        body = sink.getvalue().to_pybytes()
    table = table_of([stored_record(), stored_record(body, sys_flag=flag), stored_record(b"last")])
    assert table["body"].to_pylist() == [b"body", plain, b"last"]


@pytest.mark.parametrize(
    ("body", "flag"),
    [
        pytest.param(b"plain", 0x301, id="not zlib"),
        pytest.param(b"plain", 0x101, id="not lz4"),
        pytest.param(b"plain", 0x201, id="not zstd"),
        pytest.param(b"plain", 0x701, id="of a kind that nobody knows"),
        pytest.param(b"", 0x301, id="empty"),
        pytest.param(zlib.compress(b"many the same bytes " * 400)[:-6], 0x301, id="cut off"),
        pytest.param(zlib.compress(bytes(body_compression.MAX_DECOMPRESSED_BYTES + 1), 9), 0x301, id="too large"),
    ],
)
def test_undecompressible_body_is_returned_as_stored(body: bytes, flag: int) -> None:
    packed = zlib.compress(b"packed", 5)
    table = table_of(
        [
            stored_record(b"first"),
            stored_record(body, sys_flag=flag),
            stored_record(packed, sys_flag=0x301),
            stored_record(b"last"),
        ]
    )
    assert table["body"].to_pylist() == [b"first", body, b"packed", b"last"]


@pytest.mark.parametrize("born_ms", [-(2**63), -62_135_596_800_000, 253_402_300_799_999, 2**62, 2**63 - 1])
def test_born_time_out_of_range_is_null(born_ms: int) -> None:
    # A sender's born time is stored as it is. Some used to wrap around to other times.
    limits = [stored_record(born_ms=FIRST_MS), stored_record(born_ms=LAST_MS)]
    rows = table_of([*limits, stored_record(born_ms=born_ms)]).to_pylist()
    first, last, none = (row["born_timestamp"] for row in rows)
    assert (first.year, last.year, none) == (2, 9998, None)
    assert [row["store_timestamp"].timestamp() * 1000 for row in rows] == pytest.approx([STORED_MS] * 3)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "America/New_York", "Etc/GMT+12", "Etc/GMT-14"])
def test_born_times_can_be_converted_in_every_time_zone(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    # Spark's `collect` converts times so; Go and .NET send year 1 for "no time", which it converts in no zone.
    born = [-62_135_596_800_000, FIRST_MS, LAST_MS, 253_402_300_799_999]
    column = table_of([stored_record(born_ms=each) for each in born])["born_timestamp"]
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        for us in column.drop_null().cast(pa.int64()).to_pylist():
            dt.datetime.fromtimestamp(us // 1_000_000)  # noqa: DTZ006 - as Spark does
    finally:
        monkeypatch.undo()
        time.tzset()
    assert column.null_count == 2


def test_flipped_bit_is_reported_with_its_place() -> None:
    good, bad = stored_record(b"first"), bytearray(stored_record(b"second"))
    bad[record.OFFSET_BODY] ^= 1
    with pytest.raises(StoreCorrupt) as caught:
        table_of([good, bytes(bad)])
    assert (caught.value.file, caught.value.offset) == ("broker-a", len(good))


def test_properties_with_invalid_utf8_are_replaced() -> None:
    rows = table_of(
        [stored_record(properties=b"a\x01\xff\xfe\x02TAGS\x01t\x02"), stored_record(properties=b"b\x01c\x02")]
    ).to_pylist()
    assert rows[0]["properties"] == [("a", "\ufffd\ufffd")]
    assert rows[0]["tags"] == "t"
    assert rows[1]["properties"] == [("b", "c")]


def test_table_is_valid_after_its_buffer_is_overwritten() -> None:
    data = bytearray(stored_record(b"lasting", record.encode_properties({"k": "v"})))
    table = table_from_records(data, np.array([len(data)], np.int32), broker="b")
    data[:] = bytes(len(data))
    assert table["body"].to_pylist() == [b"lasting"]
    assert table["properties"].to_pylist() == [[("k", "v")]]


def test_no_records_give_an_empty_table() -> None:
    assert table_of([]).num_rows == 0


def send(column: Any, **options: Any) -> tuple[memoryview, Any]:
    columns = {"b": column} | {name: options.pop(name) for name in ("k", "t", "p") if name in options}
    table = column if isinstance(column, pa.Table) else pa.table(columns)
    return records_from_table(table, topic="orders", queue_id=0, body="b", unique_keys=UniqueKeyGenerator(), **options)


def test_struct_bodies_are_encoded_as_msgpack() -> None:
    rows = [{"a": 1, "b": "x"}, {"a": None, "b": "y"}]
    buffer, sizes = send(pa.array(rows))
    messages = [record.decode(data) for data in split(buffer, sizes)]
    assert [msgpack.unpackb(m.body) for m in messages] == rows
    assert {m.properties["content-type"] for m in messages} == {"application/msgpack"}


TWICE = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
NOWHERE = pa.array([{"at": 0}], pa.struct([("at", pa.timestamp("us", "Nowhere/City"))]))


@pytest.mark.parametrize(("structs", "said"), [(TWICE, "struct<a"), (NOWHERE, "at: ")])
def test_structs_unsupported_by_python_are_refused_by_name(structs: pa.Array, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        checked_rows(pa.table({"body": structs}), body="body")


def test_property_of_null_type_is_left_out() -> None:
    # Other libraries give the type null to columns of nulls.
    kind = pa.struct([("a", pa.string()), ("b", pa.null())])
    buffer, sizes = send(pa.array(["x"]), p=pa.array([{"a": "1", "b": None}], kind), properties="p")
    (only,) = [record.decode(data) for data in split(buffer, sizes)]
    assert {name: value for name, value in only.properties.items() if name != "UNIQ_KEY"} == {"a": "1"}


def test_slices_and_chunks_encode_only_their_rows() -> None:
    whole = pa.chunked_array([[b"a", b"bb"], [b"ccc", b"dddd"]])
    table = pa.table({"b": whole, "k": pa.chunked_array([["1", "2"], ["3", "4"]])}).slice(1, 2)
    buffer, sizes = records_from_table(
        table, topic="o", queue_id=0, body="b", keys="k", unique_keys=UniqueKeyGenerator()
    )
    assert [(m.body, m.keys) for m in map(record.decode, split(buffer, sizes))] == [(b"bb", ["2"]), (b"ccc", ["3"])]
    array = pa.array([None, [("a", "1")], [("b", "2")]], MAP)
    sliced = pa.table({"b": pa.array(["x", "y", "z"]), "p": array}).slice(1)
    buffer, sizes = records_from_table(
        sliced, topic="o", queue_id=0, body="b", properties="p", unique_keys=UniqueKeyGenerator()
    )
    found = [{n: v for n, v in record.decode(d).properties.items() if n != "UNIQ_KEY"} for d in split(buffer, sizes)]
    assert found == [{"a": "1"}, {"b": "2"}]


def test_record_sizes_are_predicted_before_encoding() -> None:
    table = pa.table({"b": [b"a", b"bb" * 500, b"ccc"], "k": [["1"], None, ["22", "333"]]})
    for columns in ({"keys": "k"}, {}, {"content_type": "text/plain"}):
        rows = checked_rows(table, body="b", **columns)
        for part in (rows, rows.slice(1, 3), rows.slice(2, 2)):
            _, sizes = part.encode("topic", 0, unique_keys=UniqueKeyGenerator(), born_host=HOST)
            assert part.record_sizes("topic").tolist() == sizes.tolist()


def test_empty_and_null_tags_and_keys_are_omitted() -> None:
    buffer, sizes = send(pa.array(["x", "y"]), k=pa.array(["", None]), t=pa.array([None, ""]), keys="k", tags="t")
    assert [set(record.decode(data).properties) for data in split(buffer, sizes)] == [{"UNIQ_KEY"}, {"UNIQ_KEY"}]


@pytest.mark.parametrize(
    ("column", "options", "field"),
    [
        (pa.array([b"x", b""]), {}, "body"),
        (pa.array([b"x", None]), {}, "body"),
        (pa.array([b"123456"]), {"max_body_bytes": 5}, "body"),
        (pa.array([1, 2]), {}, "body"),
        (pa.array(["x"]), {"keys": "nowhere"}, "keys"),
        (pa.array(["x"]), {"k": pa.array(["a b"]), "keys": "k"}, "keys"),
        (pa.array(["x"]), {"k": pa.array([["a", "b c"]]), "keys": "k"}, "keys"),
        (pa.array(["x"]), {"k": pa.array([["a", None]]), "keys": "k"}, "keys"),
        (pa.array(["x"]), {"k": pa.array([1.5]), "keys": "k"}, "keys"),
        (pa.array(["x"]), {"t": pa.array(["a\x01b"]), "tags": "t"}, "tags"),
        (pa.array(["x"]), {"t": pa.array(["a\x00"]), "tags": "t"}, "tags"),
        (pa.array(["x"]), {"t": pa.array(["a || b"]), "tags": "t"}, "tags"),
        (pa.array(["x"]), {"t": pa.array(["  "]), "tags": "t"}, "tags"),
        (pa.array(["x"]), {"p": pa.array([[("a\x02", "b")]], MAP), "properties": "p"}, "properties"),
        (pa.array(["x"]), {"p": pa.array([[("a", "\x01")]], MAP), "properties": "p"}, "properties"),
        (pa.array(["x"]), {"p": pa.array([[("", "b")]], MAP), "properties": "p"}, "properties"),
        (pa.array(["x"]), {"p": pa.array([[("UNIQ_KEY", "b")]], MAP), "properties": "p"}, "properties"),
        (pa.array(["x"]), {"p": pa.array([[("a", "b" * 32_760)]], MAP), "properties": "p"}, "properties"),
        (pa.array(["x"]), {"p": pa.array(["text"]), "properties": "p"}, "properties"),
        (pa.array(["x"]), {"born_host": ("fe80::1", 1)}, "born_host"),
    ],
)
def test_violated_limit_is_named_in_the_error(column: pa.Array, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        send(column, **options)
    assert caught.value.field == field


def test_duplicate_column_name_is_refused() -> None:
    twice = pa.table([pa.array(["x"]), pa.array(["y"]), pa.array(["z"])], names=["b", "b", "c"])
    for columns in ({"body": "b"}, {"body": "c", "keys": "b"}, {"body": "c", "tags": "b"}, {"body": ["b"]}):
        with pytest.raises(InvalidInput):
            checked_rows(twice, **columns)
    assert len(checked_rows(twice, body="c").bodies) == 1


def test_integer_keys_are_written_as_text() -> None:
    buffer, sizes = send(pa.array(["x"]), k=pa.array([42]), keys="k")
    assert record.decode(split(buffer, sizes)[0]).keys == ["42"]


def test_unique_keys_increase_and_never_repeat() -> None:
    source = UniqueKeyGenerator(bytes(range(10)))
    counts = [1, 0, 70_000, random.randrange(1, 50), 3]  # more than the counter's 65,536
    taken = [key for count in counts for key in source.take(count).to_pylist()]
    assert taken == sorted(set(taken))
    assert len(taken) == sum(counts)
    assert all(len(key) == 32 and key.startswith("00010203040506070809") and key == key.upper() for key in taken[:5])


def test_two_generators_do_not_share_keys() -> None:
    assert UniqueKeyGenerator().take(1)[0].as_py()[:20] != UniqueKeyGenerator().take(1)[0].as_py()[:20]


def test_property_with_empty_value_is_refused() -> None:
    # RocketMQ's readers leave out an empty property, and its producers refuse it; null leaves it out on purpose.
    rows = pa.array([[("a", "")]], pa.map_(pa.string(), pa.string()))
    with pytest.raises(InvalidInput, match="not empty"):
        send(pa.array(["x"]), p=rows, properties="p")
