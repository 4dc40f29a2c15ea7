"""Test the codec of single records: golden bytes, versions, hosts, and malformed input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raymq.storage.errors import InvalidInput, StoreCorrupt
from raymq.storage.records import record as layout
from raymq.storage.records.record import decode, decode_properties, encode, encode_properties, measure, split
from tests.store_records import make_record

#: The first record of a store that RocketMQ 5.3.3 wrote.
GOLDEN = bytes.fromhex(
    "000000d4daa320a75202ef8d00000000000000000000000000000000000000000000000000000000"
    "000001a1fd117c0f7f000001000096de000001a1fd117c337f00000100002e87"
    "000000000000000000000000000000010006"
    + b"orders".hex()
    + "0072"
    + (
        b"MSG_REGION\x01DefaultRegion\x02UNIQ_KEY\x017F000001544B4E0E2F2A68A9940E0000\x02"
        b"CLUSTER\x01DefaultCluster\x02WAIT\x01true\x02TRACE_ON\x01true\x02"
    ).hex()
)


def test_golden_record_is_decoded() -> None:
    record = decode(GOLDEN)

    assert len(GOLDEN) == record.size == 212
    assert (record.topic, record.queue_id, record.queue_offset, record.physical_offset) == ("orders", 0, 0, 0)
    assert record.body == b"\x00"
    assert record.body_crc == 0x5202EF8D
    assert record.born_timestamp_ms == 1795247143951
    assert record.born_host == "127.0.0.1:38622"
    assert record.store_timestamp_ms == 1795247143987
    assert record.store_host == "127.0.0.1:11911"
    assert record.version == 1
    assert record.message_id == "7F00000100002E870000000000000000"
    assert record.unique_key == "7F000001544B4E0E2F2A68A9940E0000"
    assert record.properties["TRACE_ON"] == "true"
    assert list(record.properties) == ["MSG_REGION", "UNIQ_KEY", "CLUSTER", "WAIT", "TRACE_ON"]


def test_golden_record_is_encoded_except_store_fields() -> None:
    record = decode(GOLDEN)
    made = encode(
        "orders",
        0,
        record.body,
        encode_properties(record.properties),
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=("127.0.0.1", 38622),
    )

    stamped = bytearray(made)
    at, end = layout.OFFSET_STORE_TIMESTAMP, layout.OFFSET_RECONSUME_TIMES
    assert stamped[at:end] == bytes(end - at)
    stamped[at:end] = GOLDEN[at:end]
    assert stamped == GOLDEN


@given(
    topic=st.text("abcXYZ019_-%|", min_size=1, max_size=200),
    queue_id=st.integers(0, 2**31 - 1),
    body=st.binary(max_size=300),
    properties=st.dictionaries(
        st.text(st.characters(min_codepoint=3, exclude_categories=["Cs"]), min_size=1, max_size=9),
        st.text(st.characters(min_codepoint=3, exclude_categories=["Cs"]), min_size=1, max_size=20),
        max_size=5,
    ),
    flag=st.integers(-(2**31), 2**31 - 1),
    host=st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)),
    port=st.integers(0, 65535),
)
def test_record_round_trips(
    topic: str, queue_id: int, body: bytes, properties: dict[str, str], flag: int, host: object, port: int
) -> None:
    encoded = encode(
        topic,
        queue_id,
        body,
        encode_properties(properties),
        flag=flag,
        born_timestamp_ms=7,
        born_host=(str(host), port),
        reconsume_times=3,
        prepared_transaction_offset=9,
    )
    record = decode(b"??" + encoded + b"!", 2)

    assert (record.topic, record.queue_id, record.body, record.flag) == (topic, queue_id, body, flag)
    assert record.properties == properties
    assert record.version == (1 if len(topic) <= 127 else 2)
    assert record.born_host.endswith(f":{port}")
    assert (record.reconsume_times, record.prepared_transaction_offset) == (3, 9)
    assert measure(encoded, 0, len(encoded)) == record.size == len(encoded)


def test_truncated_record_is_refused() -> None:
    for length in range(len(GOLDEN)):
        with pytest.raises(StoreCorrupt):
            decode(GOLDEN[:length])


def test_damaged_bytes_raise_only_store_corrupt() -> None:
    for at in range(len(GOLDEN)):
        for value in (0, 0x7F, 0xFF):
            damaged = bytearray(GOLDEN)
            damaged[at] = value
            try:
                decode(damaged)
            except StoreCorrupt:
                continue


def test_flipped_body_bit_is_detected() -> None:
    damaged = bytearray(GOLDEN)
    damaged[layout.OFFSET_BODY] ^= 1
    with pytest.raises(StoreCorrupt, match="CRC"):
        decode(damaged)
    assert decode(damaged, check_crc=False).body == b"\x01"


def test_ipv6_hosts_are_printed_as_java_does() -> None:
    assert decode(make_record(born_host=("::1", 80))).born_host == "[0:0:0:0:0:0:0:1]:80"


def test_properties_are_encoded_and_decoded() -> None:
    assert decode_properties(b"") == {}
    assert decode_properties(b"a\x011\x02a\x012\x02") == {"a": "2"}
    assert decode_properties(b"UNIQ_KEY\x01own\x02UNIQ_KEY\x01batch\x02") == {"UNIQ_KEY": "own"}
    assert decode_properties(b"TRACE_CONTEXT\x01\x02x\x01y") == {"x": "y"}
    assert decode_properties(b"a\x01\xff\x02") == {"a": "\ufffd"}
    assert encode_properties({"a": "ä", "b": "c"}) == b"a\x01\xc3\xa4\x02b\x01c\x02"
    for name, value in (("a\x01", "b"), ("a", "b\x02"), ("a", "\ud800")):
        with pytest.raises(InvalidInput):
            encode_properties({name: value})


def test_encode_refuses_values_beyond_limits() -> None:
    with pytest.raises(InvalidInput):
        make_record(topic="t" * 256)
    with pytest.raises(InvalidInput):
        make_record(topic="")
    with pytest.raises(InvalidInput):
        encode("t", 0, b"b", b"x" * 32768, born_timestamp_ms=0, born_host=("1.2.3.4", 5))
    with pytest.raises(InvalidInput):
        make_record(queue_id=1 << 31)
    with pytest.raises(InvalidInput):
        make_record(born_host=("localhost", 5))


def test_keys_are_separated_by_blanks() -> None:
    record = decode(make_record(keys="a  b a", tags="red"))
    assert record.keys == ["a", "b", "a"]
    assert record.tags == "red"


def test_split_returns_record_sizes() -> None:
    records = [make_record(b"x" * n) for n in (1, 50, 3)]
    assert split(memoryview(b"".join(records))).tolist() == [len(record) for record in records]
    assert split(memoryview(b"")).tolist() == []
    for nonsense in (b"x", b"\0" * 100, b"".join(records)[:-1]):
        with pytest.raises(InvalidInput):
            split(memoryview(nonsense))
