"""Test that a template makes the bytes that `encode` makes."""

from __future__ import annotations

import pytest

from raymq.storage.errors import InvalidInput
from raymq.storage.records.record import MAX_PROPERTIES_BYTES, MAX_TOPIC_BYTES, decode, encode, pack_host
from raymq.storage.records.record_template import RecordTemplate, record_template

HOSTS = [pack_host("10.0.0.1", 0), pack_host("127.0.0.1", 65_535), pack_host("2001:db8::7", 5)]


@pytest.mark.parametrize("topic", ["t", "t" * 127, "t" * 128, "t" * MAX_TOPIC_BYTES])
@pytest.mark.parametrize("host", HOSTS)
def test_template_encodes_the_bytes_of_encode(topic: str, host: bytes) -> None:
    template = RecordTemplate(topic, host)
    for body in (b"x", b"\xff" * 1_000):
        for properties in (b"", b"UNIQ_KEY\x01U\x02", b"p" * MAX_PROPERTIES_BYTES):
            for born_ms in (0, 1_700_000_000_123):
                made = template.encode(body, properties, born_ms)
                assert made == encode(topic, 0, body, properties, born_timestamp_ms=born_ms, born_host=host)
                assert decode(made).body == body


def test_template_refuses_invalid_input_like_encode() -> None:
    template = record_template("t", HOSTS[0])
    assert record_template("t", HOSTS[0]) is template
    with pytest.raises(InvalidInput, match="properties"):
        template.encode(b"x", bytes(MAX_PROPERTIES_BYTES + 1), 0)
    for topic, host in (("", HOSTS[0]), ("t" * (MAX_TOPIC_BYTES + 1), HOSTS[0]), ("t", b"short")):
        with pytest.raises(InvalidInput):
            RecordTemplate(topic, host)
