"""Test that UNIQ_KEY, KEYS and TAGS of a batch equal those of each record alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raymq.storage.records.byte_rows import pieces, rows_before
from raymq.storage.records.indexed_properties import Spans, find_tags_and_keys, tags_and_keys

#: Bytes in front of the properties, as of a record's header.
HEADER = b"\x02KEYS\x01no\x02TAGS\x01no\x02"

names = st.sampled_from(
    [b"UNIQ_KEY", b"KEYS", b"TAGS", b"XKEYS", b"XUNIQ_KEY", b"TAGSX", b"UNIQ_KEYS", b"UNIQ_", b"KEY", b"", b"a"]
)
values = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=8).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.lists(st.sampled_from([b"k1", b"k2", b"", b"KEYS", b"\xff"]), max_size=4).map(b" ".join),
    st.integers(0, 200).map(lambda length: b"v" * length),
)
pairs = st.tuples(names, st.sampled_from([b"\x01", b"\x01", b"\x01", b"", b"\x01\x01"]), values).map(b"".join)
properties = st.one_of(
    st.lists(pairs, max_size=6).map(lambda found: b"".join(pair + b"\x02" for pair in found)),
    st.lists(pairs, max_size=6).map(b"\x02".join),
    st.lists(st.sampled_from([b"UNIQ_KEY", b"KEYS", b"TAGS", b"\x01", b"\x02", b" ", b"x"]), max_size=12).map(b"".join),
    st.binary(max_size=40),
)

ODD = {
    "none": b"",
    "only a separator": b"\x02",
    "no trailing separator": b"UNIQ_KEY\x01U\x02KEYS\x01a b",
    "two unique keys": b"UNIQ_KEY\x01own\x02TAGS\x01t\x02UNIQ_KEY\x01of the batch\x02",
    "the same unique key twice": b"UNIQ_KEY\x01U\x02UNIQ_KEY\x01U\x02",
    "unique keys of equal length and hash": b"UNIQ_KEY\x01Aa\x02UNIQ_KEY\x01BB\x02",
    "an empty unique key in front": b"UNIQ_KEY\x01\x02UNIQ_KEY\x01U\x02",
    "an empty unique key behind": b"UNIQ_KEY\x01U\x02UNIQ_KEY\x01\x02",
    "repeated names": b"KEYS\x01a\x02KEYS\x01b c\x02TAGS\x01r\x02TAGS\x01s\x02",
    "a repeated key": b"KEYS\x01a  a \x02",
    "empty values": b"KEYS\x01\x02TAGS\x01\x02",
    "suffixes of other names": b"XKEYS\x01a\x02MYTAGS\x01b\x02XUNIQ_KEY\x01c\x02",
    "a name within a value": b"a\x01KEYS\x01b\x02TAGS\x01x\x01y\x02",
    "not ASCII": "KEYS\x01schlüssel 标签 \U0001f600\x02TAGS\x01ä\x02".encode(),
    "a surrogate": b"KEYS\x01\xed\xa0\x80 k\x02",
    "a name cut off": b"a\x01b\x02UNIQ_KEY",
    "long": b"KEYS\x01" + b" ".join(b"%d" % i for i in range(5000)) + b"\x02TAGS\x01" + b"t" * 700 + b"\x02",
}


def check(records: list[bytes]) -> None:
    lead = [HEADER * (1 + i % 3) for i in range(len(records))]
    buffer = b"".join(head + record for head, record in zip(lead, records, strict=True))
    ends = np.cumsum([len(head) + len(record) for head, record in zip(lead, records, strict=True)], dtype=np.int64)
    starts = ends - np.array([len(record) for record in records], np.int64)
    found = find_tags_and_keys(buffer, starts, ends)

    def texts(spans: Spans) -> list[tuple[int, bytes]]:
        triples = zip(spans.owners.tolist(), spans.starts.tolist(), spans.ends.tolist(), strict=True)
        return [(owner, buffer[start:end]) for owner, start, end in triples]

    singly = [tags_and_keys(record) for record in records]
    assert texts(found.tags) == [(i, tags) for i, (tags, _) in enumerate(singly) if tags]
    assert texts(found.keys) == [(i, key) for i, (_, keys) in enumerate(singly) for key in keys]


@pytest.mark.parametrize("name", ODD)
def test_odd_properties_in_a_batch_equal_single_ones(name: str) -> None:
    check([ODD[name]])
    check([ODD["two unique keys"], ODD[name], ODD[name], ODD["none"]])


def test_all_odd_properties_in_one_batch_equal_single_ones() -> None:
    check([*ODD.values(), *reversed(ODD.values())])


@given(st.lists(properties, min_size=1, max_size=30))
def test_any_properties_in_a_batch_equal_single_ones(records: list[bytes]) -> None:
    check(records)


@given(properties)
def test_values_equal_the_values_of_the_pairs(record: bytes) -> None:
    def values(name: bytes) -> list[bytes]:
        return [pair[len(name) + 1 :] for pair in record.split(b"\x02") if pair.startswith(name + b"\x01")] or [b""]

    unique = values(b"UNIQ_KEY")
    keys = [unique[0]] + [unique[-1]] * (unique[-1] != unique[0]) + values(b"KEYS")[-1].split(b" ")
    assert tags_and_keys(record) == (values(b"TAGS")[-1], [key for key in keys if key])


@given(st.lists(st.lists(st.binary(max_size=90), min_size=1, max_size=4), min_size=1, max_size=20))
def test_pieces_split_spans_at_separators(spans: list[list[bytes]]) -> None:
    joined = [b",".join(piece.replace(b",", b"") for piece in span) for span in spans]
    buffer = b"," + b",".join(joined)
    ends = np.cumsum([1 + len(span) for span in joined], dtype=np.int64)
    starts = ends - np.array([len(span) for span in joined], np.int64)
    triples = np.stack(pieces(buffer, starts, ends, ord(",")), axis=1).tolist()
    found = [(i, buffer[start:end]) for i, start, end in triples]
    assert found == [(i, piece) for i, span in enumerate(joined) for piece in span.split(b",")]


def test_rows_before_the_buffer_are_zeros() -> None:
    rows = rows_before(b"abcdef", np.array([1, 3, 6]), 4)
    assert [bytes(row) for row in rows] == [b"\0\0\0a", b"\0abc", b"cdef"]
