"""Test that tags codes and key hashes of a batch equal those of each record alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raymq.storage.records.index_inputs import derive_index_inputs
from raymq.storage.records.java_hash import index_hash, tags_code
from raymq.storage.records.record import encode
from raymq.storage.records.record_batch import BadRecord, Batch, parse

pytestmark = pytest.mark.usefixtures("batch_code")


def batch_of(properties: list[bytes], bodies: list[bytes] | None = None, topic: str = "orders") -> Batch:
    bodies = bodies or [b"body %d" % number for number in range(len(properties))]
    records = [
        encode(topic, 0, body, each, born_timestamp_ms=1, born_host=bytes(8))
        for body, each in zip(bodies, properties, strict=True)
    ]
    return parse(b"".join(records), np.array([len(record) for record in records], np.int32))


def encode_pairs(**named: str) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in named.items()).encode()


SHAPES = {
    "unique key": [encode_pairs(UNIQ_KEY=f"7F00{n:028X}") for n in range(40)],
    "all": [
        encode_pairs(UNIQ_KEY=f"7F00{n * 77777:028X}", a="b", KEYS=f"order-{n:05}", TAGS=f"t{n % 7}") for n in range(40)
    ],
    "one tag": [encode_pairs(TAGS="paid")] * 5,
    "short": [encode_pairs(KEYS=str(n)) for n in range(9)],
    "none": [b""] * 3,
    "two uniform, other order": [encode_pairs(KEYS=f"k{n}", UNIQ_KEY=f"u{n}") for n in range(10)],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_inputs_of_uniform_records_equal_single_ones(shape: str) -> None:
    assert_derived(SHAPES[shape])


OTHERS = {
    "lengths": [encode_pairs(KEYS="k" * n) for n in range(1, 30)],
    "equal lengths, other places": [encode_pairs(KEYS="abc", TAGS="x"), encode_pairs(KEYS="ab", TAGS="xy")],
    "other names": [encode_pairs(KEYS="abc"), encode_pairs(TAGS="abc")],
    "a separator in a value": [encode_pairs(a="xyz", KEYS="k"), b"a\x01x\x02zKEYS\x01k\x02"],
    "an end in a value": [encode_pairs(a="xyz"), b"a\x01x\x02z\x02"],
    "twice": [b"UNIQ_KEY\x01a\x02UNIQ_KEY\x01b\x02"] * 3,
    "several keys": [encode_pairs(KEYS="a b"), encode_pairs(KEYS="c d")],
    "several keys, not first": [encode_pairs(KEYS="abc"), encode_pairs(KEYS="c d")],
    "not closed": [b"KEYS\x01a"] * 2,
    "empty value": [b"KEYS\x01\x02"] * 2,
    "no value": [b"KEYS\x02"] * 2,
    "not ASCII": [encode_pairs(KEYS=f"kä{n}", TAGS="ö") for n in range(5)],
    "not ASCII once": [encode_pairs(KEYS="kaa"), encode_pairs(KEYS="kä")],
}


@pytest.mark.parametrize("shape", OTHERS)
def test_inputs_of_mixed_records_equal_single_ones(shape: str) -> None:
    assert_derived(OTHERS[shape])


def assert_derived(properties: list[bytes]) -> None:
    batch = batch_of(properties)
    derived, alone = derive_index_inputs(batch), [derive_index_inputs(batch_of([each])) for each in properties]
    assert derived.tags_codes.tolist() == [code for each in alone for code in each.tags_codes.tolist()]
    hashes: list[list[int]] = [[] for _ in properties]
    for owner, key_hash in zip(derived.key_owners.tolist(), derived.key_hashes.tolist(), strict=True):
        hashes[owner].append(key_hash)
    assert hashes == [each.key_hashes.tolist() for each in alone]
    assert batch.properties_at.tolist() == [end - len(p) for end, p in zip(batch.ends, properties, strict=True)]


def test_hashes_equal_javas() -> None:
    derived = derive_index_inputs(batch_of(SHAPES["all"]))
    expected = [index_hash(f"orders#{key}") for n in range(40) for key in (f"7F00{n * 77777:028X}", f"order-{n:05}")]
    assert derived.key_hashes.tolist() == expected
    assert derived.key_owners.tolist() == [n for n in range(40) for _ in range(2)]
    assert derived.tags_codes.tolist() == [tags_code(f"t{n % 7}") for n in range(40)]


def test_record_of_another_topic_forms_its_own_group() -> None:
    topics = ["orders", "orders", "0rders"]
    records = [
        encode(topic, 0, b"x", encode_pairs(KEYS="k"), born_timestamp_ms=1, born_host=bytes(8)) for topic in topics
    ]
    batch = parse(b"".join(records), np.array([len(record) for record in records], np.int32))
    found = [(group.topic, group.members.tolist()) for group in batch.groups if group.members is not None]
    assert found == [("orders", [0, 1]), ("0rders", [2])]


@pytest.mark.parametrize("at", range(-20, 0))
def test_changed_byte_is_judged_equally_alone_and_in_a_batch(at: int) -> None:
    record = encode("orders", 0, b"body", encode_pairs(KEYS="abc"), born_timestamp_ms=1, born_host=bytes(8))
    for value in (0, 1, 2, 7, 0x41, 0xFF):
        changed = bytearray(record)
        changed[at] = value
        one = outcome([bytes(changed)])
        # The result does not depend on a sound record in front.
        assert outcome([record, bytes(changed)]) == (one if isinstance(one, str) else [b"orders", *one])


def outcome(records: list[bytes]) -> str | list[bytes]:
    try:
        batch = parse(b"".join(records), np.array([len(record) for record in records], np.int32))
    except BadRecord as bad:
        return bad.reason
    names: list[bytes] = [b""] * len(records)
    for group in batch.groups:
        for member in range(len(records)) if group.members is None else group.members.tolist():
            names[member] = group.topic.encode()
    return names


@given(
    st.lists(
        st.tuples(st.text("ab\x01\x02 ä", max_size=4), st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "x"])), max_size=4
    ),
    st.integers(2, 6),
)
def test_inputs_of_any_properties_equal_single_ones(values: list[tuple[str, str]], count: int) -> None:
    properties = [
        "".join(f"{name}\x01{value}{number % 2}\x02" for value, name in values).encode() for number in range(count)
    ]
    properties = [each for each in properties if not each.endswith(b"\0")]
    assert_derived(properties)
