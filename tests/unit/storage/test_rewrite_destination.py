"""Test copies of records for other queues against the codec of single records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raymq.storage.errors import InvalidInput
from raymq.storage.records import record_batch
from raymq.storage.records.record import Record, decode, encode, encode_properties
from raymq.storage.records.rewrite_destination import rewrite_destinations
from raymq.storage.store import Store
from tests.store_records import SMALL

HOSTS = [("10.0.0.1", 5), ("fe80::1", 6)]
LONG = "%RETRY%" + "g" * 140


def batch_of(*records: bytes) -> record_batch.Batch:
    return record_batch.parse(b"".join(records), np.array(list(map(len, records)), np.int32))


def decode_records(records: memoryview, sizes: np.ndarray) -> list[Record]:
    starts = np.cumsum(sizes) - sizes
    assert int(sizes.sum()) == len(records)
    return [decode(records, int(start)) for start in starts]


texts = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00\x01\x02"), min_size=1, max_size=8)
properties = st.dictionaries(texts, texts, max_size=4)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["t", "topic", LONG]),
            st.sampled_from(["u", LONG]),
            st.integers(0, 9),
            st.binary(min_size=1, max_size=40),
            properties,
            st.sampled_from(HOSTS),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_rewrite_changes_only_the_destination(messages: list[tuple]) -> None:
    records = [
        encode(topic, 1, body, encode_properties(own), flag=3, born_timestamp_ms=9, born_host=host, reconsume_times=2)
        for topic, _, _, body, own, host in messages
    ]
    further = [encode_properties({"MORE": f"{n}", "x": "last"}) for n in range(len(messages))]
    moved = decode_records(
        *rewrite_destinations(batch_of(*records), [t[1] for t in messages], [t[2] for t in messages], further)
    )
    for number, (record, (_, topic, queue_id, _, own, _)) in enumerate(zip(records, messages, strict=True)):
        was = decode(record)
        expected = replace(
            was,
            topic=topic,
            queue_id=queue_id,
            properties={**own, "MORE": f"{number}", "x": "last"},
            size=moved[number].size,
            version=2 if topic == LONG else 1,
        )
        assert moved[number] == expected


def test_properties_without_trailing_separator_are_extended(tmp_path: Path) -> None:
    record = encode("t", 0, b"b", b"a\x011\x02b\x012", born_timestamp_ms=1, born_host=HOSTS[0])
    bare = encode("t", 0, b"b", b"", born_timestamp_ms=1, born_host=HOSTS[0])
    records, sizes = rewrite_destinations(batch_of(record, bare), ["u", "u"], [0, 0], [b"c\x013\x02"] * 2)
    first, second = decode_records(records, sizes)
    assert first.properties == {"a": "1", "b": "2", "c": "3"}
    assert second.properties == {"c": "3"}
    with Store.open(tmp_path, SMALL) as store:
        store.append(records, sizes)
        assert store.max_offset("u", 0) == 2


def test_properties_beyond_the_limit_are_refused() -> None:
    record = encode("t", 0, b"b", encode_properties({"a": "x" * 32_700}), born_timestamp_ms=1, born_host=HOSTS[0])
    with pytest.raises(InvalidInput, match="properties"):
        rewrite_destinations(batch_of(record), ["u"], [0], [encode_properties({"b": "y" * 100})])
