"""Test that batch checksums equal zlib's."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raymq.storage.records.checksums import checksums

pytestmark = pytest.mark.usefixtures("batch_code")


def check(texts: list[bytes], before: bytes) -> None:
    lengths = np.array([len(text) for text in texts], np.int64)
    starts = len(before) + np.cumsum(lengths) - lengths
    found = checksums(before + b"".join(texts), starts, lengths)
    assert found.tolist() == [zlib.crc32(text) for text in texts]


@given(st.lists(st.binary(max_size=140), min_size=1, max_size=40), st.binary(max_size=20))
def test_checksums_of_any_texts_equal_zlib(texts: list[bytes], before: bytes) -> None:
    check(texts, before)


@pytest.mark.parametrize("length", [0, 1, 100, 5000])
def test_checksums_of_equal_lengths_equal_zlib(length: int) -> None:
    random = np.random.default_rng(length)
    check([random.bytes(length) for _ in range(50)], b"x" * 40)


@pytest.mark.parametrize("different", [3, 300])
def test_checksums_of_mixed_lengths_equal_zlib(different: int) -> None:
    random = np.random.default_rng(1)
    check([random.bytes(1 + int(length)) for length in random.integers(0, different, 2000)], b"")
