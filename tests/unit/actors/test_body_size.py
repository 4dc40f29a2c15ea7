"""Test which bodies a sender compares with its broker's limit, and the default limit."""

from __future__ import annotations

import numpy as np
import pytest

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import TopicRoute
from raymq.actors.sending.body_size import ALWAYS_READABLE_BYTES, body_limit, check_body_size, longest_body
from raymq.storage.errors import StoreCorrupt
from raymq.storage.records.record import encode, encode_properties

MIB = 1 << 20


def records(*lengths: int, host: str = "10.0.0.1") -> tuple[bytearray, np.ndarray]:
    made = [
        encode("t", 0, bytes(n), encode_properties({"n": "x"}), born_timestamp_ms=1, born_host=(host, 1))
        for n in lengths
    ]
    return bytearray().join(made), np.array(list(map(len, made)), np.int32)


@pytest.mark.parametrize("host", ["10.0.0.1", "::1"])
@pytest.mark.parametrize(
    ("lengths", "longest"),
    [
        ((1,), 0),
        ((4 * MIB - 1000,), 0),
        ((4 * MIB + 1,), 4 * MIB + 1),
        ((1, 5 * MIB, 7), 5 * MIB),
        ((5 * MIB, 6 * MIB), 6 * MIB),
        ((MIB,) * 6, 0),
    ],
)
def test_longest_body_ignores_always_readable_records(lengths: tuple[int, ...], longest: int, host: str) -> None:
    assert longest_body(*records(*lengths, host=host)) == longest


def test_longest_body_raises_store_corrupt_for_bad_record() -> None:
    data, sizes = records(5 * MIB)
    data[4:8] = b"oops"
    with pytest.raises(StoreCorrupt):
        longest_body(data, sizes)


@pytest.mark.parametrize(
    ("told", "limit"),
    [
        ({}, ALWAYS_READABLE_BYTES),
        ({"b": 1}, ALWAYS_READABLE_BYTES),
        ({"a": 1024, "b": 1}, 1024),
        ({"a": 20 * MIB}, 20 * MIB),
    ],
)
def test_body_limit_defaults_to_always_readable_bytes(told: dict[str, int], limit: int) -> None:
    route = TopicRoute("t", (), {"a": "h:1", "b": "h:2"}, told)
    assert body_limit(route, "a") == limit
    assert body_limit(None, "a") == ALWAYS_READABLE_BYTES
    check_body_size(limit, body_limit(route, "a"))
    with pytest.raises(InvalidInput, match=f"body: 1 to {limit} bytes; got {limit + 1}.*raise max_message_bytes"):
        check_body_size(limit + 1, body_limit(route, "a"))
