"""Test that lists of messages and tables are encoded as the scalar codec encodes each message."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

from raymq.actors.request_limits import PART_BYTES
from raymq.client import InvalidInput, Message
from raymq.client.message import key_numbers
from raymq.client.produce.message_encoder import encode_messages, message_parts, table_parts
from raymq.storage.records.record import Record, decode, encode, encode_properties

pytestmark = pytest.mark.usefixtures("batch_code")

HOST4 = bytes([10, 0, 0, 1, 0, 0, 0, 9])
HOST6 = bytes(15) + b"\x01" + bytes(4)


def decoded(records: bytearray, sizes: np.ndarray) -> list[Record]:
    starts = np.cumsum(sizes) - sizes
    assert int(sizes.sum()) == len(records)
    return [decode(records, int(start)) for start in starts]


def plain_messages(count: int) -> list[Message]:
    return [Message("topic", b"%d" % number * (1 + number % 5)) for number in range(count)]


def same_size_messages(count: int) -> list[Message]:
    return [Message("topic", b"%6d" % number, tags="t") for number in range(count)]


def varied_messages(count: int) -> list[Message]:
    return [
        Message(
            "topic", b"x", tags="täg" if number % 2 else None, keys=["k"] * (number % 3), properties={"n": str(number)}
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("host", [HOST4, HOST6])
@pytest.mark.parametrize("count", [1, 16, 17, 500])
@pytest.mark.parametrize("make", [plain_messages, same_size_messages, varied_messages])
def test_message_list_is_encoded_as_single_messages_are(make: object, count: int, host: bytes) -> None:
    messages = make(count)  # type: ignore[operator]
    records = decoded(*encode_messages(messages, key_numbers(messages), host))
    for record, message in zip(records, messages, strict=True):
        alone = decode(message.encode(record.born_timestamp_ms, host))
        assert record == alone


def test_encoded_record_has_the_unique_key_of_its_message() -> None:
    seen_before, same_twice = Message("t", b"x"), Message("t", b"x")
    key = seen_before.unique_key
    messages = [seen_before, same_twice, same_twice, *plain_messages(20), pickle.loads(pickle.dumps(seen_before))]
    records = decoded(*encode_messages(messages, key_numbers(messages), HOST4))
    assert [record.unique_key for record in records] == [message.unique_key for message in messages]
    assert records[0].unique_key == key == records[-1].unique_key
    assert records[1].unique_key == records[2].unique_key
    assert len({record.unique_key for record in records}) == 22


def test_key_numbers_are_stable() -> None:
    messages = plain_messages(3)
    assert list(key_numbers(messages)) == list(key_numbers(messages))


def test_message_listed_twice_has_one_key_number() -> None:
    message, other = Message("t", b"x"), Message("t", b"y")
    first, second, third = key_numbers([message, message, other])
    assert first == second != third


def test_parts_hold_at_most_4_mib() -> None:
    messages = [Message("t", bytes(1 + size)) for size in [1_000_000] * 9 + [4 * 1024 * 1024 - 1] + [10] * 50]
    parts = list(message_parts(messages, key_numbers(messages), HOST4))
    assert [part.which for part in parts] == [slice(0, 4), slice(4, 8), slice(8, 9), slice(9, 10), slice(10, 60)]
    for part in parts:
        assert len(part.records) <= PART_BYTES or len(part.sizes) == 1
        assert [record.body for record in decoded(part.records, part.sizes)] == [m.body for m in messages[part.which]]


def test_table_parts_hold_at_most_4_mib() -> None:
    table = pa.table({"b": [bytes([number % 251]) * 1_000 for number in range(20_000)]})
    parts = list(table_parts(table, "t", body="b", keys=None, tags=None, properties=None, host="10.0.0.1"))
    assert [part.which.start for part in parts] == [0, *(part.which.stop for part in parts[:-1])]
    assert parts[-1].which.stop == 20_000
    bodies = [record.body for part in parts for record in decoded(part.records, part.sizes)]
    assert bodies == table["b"].to_pylist()
    assert all(len(part.records) <= PART_BYTES for part in parts)


@pytest.mark.parametrize("topic", ["t", "%RETRY%" + "t" * 200])
@pytest.mark.parametrize("rows", [1, 300])
def test_rows_of_equal_size_are_encoded_as_other_rows(rows: int, topic: str) -> None:
    texts = [b"%4d" % number for number in range(rows)]
    # A slice: the values begin behind the start of the buffer.
    table = pa.table({"b": pa.array([b"before", *texts], pa.binary())}).slice(1)
    (part,) = table_parts(table, topic, body="b", keys=None, tags=None, properties=None, host="10.0.0.1")
    records = decoded(part.records, part.sizes)
    assert [record.body for record in records] == texts
    for record in records:
        properties = encode_properties(record.properties)
        host = bytes([10, 0, 0, 1]) + bytes(4)
        alone = encode(topic, 0, record.body, properties, born_timestamp_ms=record.born_timestamp_ms, born_host=host)
        assert record == decode(alone)


@pytest.mark.parametrize(
    "bad",
    [
        pa.table({"b": ["x"] * 9 + [""], "p": [None] * 10}),
        pa.table({"b": ["x"] * 10, "p": [None] * 9 + ["y" * 32_767]}),
        pa.table({"b": pa.array([{"a": 1}] * 9 + [{"a": 2}]), "p": [None] * 9 + ["a b"]}),
    ],
)
def test_table_with_an_invalid_row_is_refused_before_any_part(bad: pa.Table) -> None:
    """Otherwise the valid rows are stored, and stored again when the corrected table is sent."""
    with pytest.raises(InvalidInput):
        table_parts(bad, "t", body="b", keys="p", tags=None, properties=None, host="127.0.0.1")


@pytest.mark.parametrize("tags", [None, "tag"])
@pytest.mark.parametrize("properties", [None, "properties"])
def test_rows_get_common_properties(tags: str | None, properties: str | None) -> None:
    own = pa.array([[("a", "b"), ("traceparent", "own")], None, []], pa.map_(pa.string(), pa.string()))
    table = pa.table({"b": [b"1", b"2", b"3"], "tag": ["x", None, "y"], "properties": own})
    common = {"traceparent": "common", "tracestate": "s"}
    (part,) = table_parts(
        *(table, "t"), body="b", keys=None, tags=tags, properties=properties, host="10.0.0.1", common=common
    )
    for number, record in enumerate(decoded(part.records, part.sizes)):
        found = record.properties
        assert {name: found[name] for name in common} == common
        assert found.get("a") == ("b" if properties and number == 0 else None)
        assert record.tags == (table["tag"][number].as_py() if tags else None)


def test_common_properties_are_left_out_of_rows_without_room() -> None:
    own = pa.array([[("a", "b" * 31_000)], [("a", "b")]], pa.map_(pa.string(), pa.string()))
    table = pa.table({"b": [b"1", b"2"], "p": own})
    common = {"traceparent": "common"}
    (part,) = table_parts(table, "t", body="b", keys=None, tags=None, properties="p", host="10.0.0.1", common=common)
    assert ["traceparent" in record.properties for record in decoded(part.records, part.sizes)] == [False, False]
