"""Test the sequence property: written into records, overwritten in place, and read back."""

from __future__ import annotations

import numpy as np
import pytest

from raymq.storage.errors import InvalidInput
from raymq.storage.records.producer_sequence import ProducerSequence, read, stamp
from raymq.storage.records.property_names import PRODUCER_SEQUENCE
from raymq.storage.records.record import MAX_PROPERTIES_BYTES, decode, encode, encode_properties

HOST4, HOST6 = ("127.0.0.1", 1), ("::1", 1)
FIRST = ProducerSequence("0123456789abcdef", 3, 1 << 40, 2)
SECOND = ProducerSequence("fedcba9876543210", 4, 0, 2)


def records(topic: str, host: tuple[str, int], properties: dict[str, str]) -> tuple[bytearray, np.ndarray]:
    encoded = [
        encode(topic, 7, body, encode_properties(properties), born_timestamp_ms=1, born_host=host)
        for body in (b"first", b"second")
    ]
    return bytearray(b"".join(encoded)), np.array([len(each) for each in encoded], np.int32)


@pytest.mark.parametrize("host", [HOST4, HOST6])
@pytest.mark.parametrize("topic", ["t", "t" * 200])
@pytest.mark.parametrize("properties", [{}, {"UNIQ_KEY": "k", "TAGS": "x"}])
def test_stamped_records_keep_body_topic_and_properties(
    topic: str, host: tuple[str, int], properties: dict[str, str]
) -> None:
    data, sizes = records(topic, host, properties)
    for sequence in (FIRST, SECOND):
        sizes = stamp(data, sizes, sequence)
        assert read(data) == sequence
        first, second = decode(data), decode(data, int(sizes[0]))
        assert first.properties == {PRODUCER_SEQUENCE: sequence.value(), **properties}
        assert second.properties == properties
        assert (first.body, second.body, second.topic) == (b"first", b"second", topic)
        assert int(sizes.sum()) == len(data)


def test_sequence_must_fit_into_the_properties() -> None:
    data, sizes = records("t", HOST4, {"a": "x" * (MAX_PROPERTIES_BYTES - 67)})
    stamped = stamp(data, sizes, FIRST)
    assert decode(data).properties["a"]
    assert int(stamped[0]) == int(sizes[0]) + 64
    data, sizes = records("t", HOST4, {"a": "x" * (MAX_PROPERTIES_BYTES - 66)})
    before = bytes(data)
    with pytest.raises(InvalidInput):
        stamp(data, sizes, FIRST)
    assert data == before


@pytest.mark.parametrize("data", [b"", b"x" * 20, bytes(records("t", HOST4, {"a": "b"})[0])])
def test_reading_a_missing_sequence_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        read(data)


@pytest.mark.parametrize("value", ["", "0" * 47, "0" * 49, "g" * 48])
def test_malformed_sequence_value_is_refused(value: str) -> None:
    with pytest.raises(InvalidInput):
        ProducerSequence.from_value(value)
