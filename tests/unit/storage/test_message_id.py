"""Test message ids."""

from __future__ import annotations

import pytest

from raymq.storage.errors import InvalidInput
from raymq.storage.records import message_id


@pytest.mark.parametrize(("host", "length"), [("127.0.0.1", 32), ("2001:db8::7", 56)])
def test_message_id_round_trips(host: str, length: int) -> None:
    text = message_id.encode(host, 11911, 1 << 40)
    assert len(text) == length
    assert text == text.upper()
    assert message_id.decode(text) == message_id.decode(text.lower()) == (host, 11911, 1 << 40)


def test_message_id_of_a_known_address() -> None:
    assert message_id.encode("127.0.0.1", 11911, 0) == "7F00000100002E870000000000000000"


@pytest.mark.parametrize(
    "nonsense",
    [
        "",
        "7F",
        "x" * 32,
        "7F00000100002E87000000000000000",
        "7F000001FFFFFFFF0000000000000000",
        "7F00000100002E87FFFFFFFFFFFFFFFF",
        "7F00000100002E87" * 3,
        "7F 00 00 01 00 00 2E 87 00 00 00",
    ],
)
def test_malformed_message_id_is_refused(nonsense: str) -> None:
    with pytest.raises(InvalidInput):
        message_id.decode(nonsense)


def test_encode_refuses_a_host_name() -> None:
    with pytest.raises(InvalidInput):
        message_id.encode("localhost", 1, 1)


@pytest.mark.parametrize("host", ["127.0.0.1", "2001:db8::7"])
def test_ids_of_a_store_share_a_prefix(host: str) -> None:
    assert message_id.prefix(host, 80) + f"{12345:016X}" == message_id.encode(host, 80, 12345)
