"""The checksums of many bodies at once are zlib's."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raymq.storage import checksums as module
from raymq.storage.checksums import checksums


def check(texts: list[bytes], before: bytes) -> None:
    lengths = np.array([len(text) for text in texts], np.int64)
    starts = len(before) + np.cumsum(lengths) - lengths
    found = checksums(before + b"".join(texts), starts, lengths)
    assert found.tolist() == [zlib.crc32(text) for text in texts]


@given(st.lists(st.binary(max_size=140), min_size=1, max_size=40), st.binary(max_size=20), st.sampled_from([1, 256]))
def test_any_texts(texts: list[bytes], before: bytes, enough: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_ENOUGH", enough)
        check(texts, before)


@pytest.mark.parametrize("enough", [1, 1000])
@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 100, 127, 128, 129, 5000])
def test_equal_lengths(length: int, enough: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ENOUGH", enough)
    random = np.random.default_rng(length)
    check([random.bytes(length) for _ in range(50)], b"x" * 40)


def test_short_and_long_ones_together() -> None:
    random = np.random.default_rng(1)
    check([random.bytes(int(length)) for length in random.integers(0, 300, 2000)], b"")
