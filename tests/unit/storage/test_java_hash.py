"""Test Java's string hash; the expected values are those of a JVM."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raymq.storage.records.java_hash import (
    index_hash,
    index_hashes,
    java_hash,
    prefix_hash,
    tags_code,
    tags_code_of_bytes,
    tags_codes,
)

TABLE = {
    "": 0,
    "a": 97,
    "Aa": 2112,
    "BB": 2112,
    "AaAa": 2031744,
    "hello world": 1794106052,
    "polygenelubricants": -(2**31),
    "TagA": 2598919,
    "\U0001f600": 1772899,
    "ä": 228,
    "标签": 857175,
}


@pytest.mark.parametrize(("text", "expected"), TABLE.items())
def test_java_hash(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def hash_by_definition(text: str) -> int:
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@given(st.text(max_size=60))
def test_java_hash_equals_its_definition(text: str) -> None:
    assert java_hash(text) == hash_by_definition(text)


def spans_of(texts: list[bytes], before: bytes = b"") -> tuple[bytes, np.ndarray, np.ndarray]:
    """Join the texts in one buffer; return it with each start and end."""
    ends = len(before) + np.cumsum([len(text) for text in texts], dtype=np.int64)
    starts = ends - np.array([len(text) for text in texts], np.int64)
    return before + b"".join(texts), starts, ends


def hashes_of(topic: str, keys: list[bytes], before: bytes = b"") -> list[int]:
    found: list[int] = index_hashes(np.full(len(keys), prefix_hash(topic), np.uint32), *spans_of(keys, before)).tolist()
    return found


def test_long_texts_hash_by_definition() -> None:
    text = "0123456789" * 1000
    assert java_hash(text) == hash_by_definition(text)
    assert hashes_of("t", [text.encode()]) == [index_hash("t#" + text)]


def test_tags_code() -> None:
    assert tags_code(None) == tags_code("") == 0
    assert tags_code("polygenelubricants") == -(2**31)


def test_index_hash_is_never_negative() -> None:
    assert index_hash("polygenelubricants") == 0
    assert index_hash("TagA") == 2598919


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), min_size=1, max_size=20))
def test_batch_hashes_equal_single_hashes(keys: list[str]) -> None:
    expected = [index_hash("orders#" + key) for key in keys]
    assert hashes_of("orders", [key.encode() for key in keys]) == expected


@given(st.lists(st.binary(max_size=300) | st.text().map(str.encode), min_size=1, max_size=20), st.binary(max_size=80))
def test_batch_hashes_of_any_bytes_equal_single_hashes(texts: list[bytes], before: bytes) -> None:
    expected = [index_hash("%RETRY%g#" + text.decode("utf-8", "replace")) for text in texts]
    assert hashes_of("%RETRY%g", texts, before) == expected
    filled = [text for text in texts if text] or [b"x"]
    assert tags_codes(*spans_of(filled, before)).tolist() == [tags_code_of_bytes(text) for text in filled]


def test_batch_hash_of_the_smallest_int_is_zero() -> None:
    assert java_hash("polygenelubricants") == -(2**31)
    buffer, starts, ends = spans_of([b"polygenelubricants"])
    assert index_hashes(np.zeros(1, np.uint32), buffer, starts, ends).tolist() == [0]
