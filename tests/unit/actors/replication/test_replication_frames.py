"""Test the bytes of replication frames: golden bytes, bounds, and refusal of damage."""

from __future__ import annotations

import contextlib
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.frame_bodies import (
    Hello,
    encode_epochs,
    encode_events,
    encode_number,
    read_epoch,
    read_epochs,
    read_events,
    read_hello,
    read_number,
)
from raymq.actors.broker.replication.replication_frames import (
    HEAD_BYTES,
    FrameKind,
    ReplicationFrame,
    read_head,
)
from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition
from raymq.actors.errors import ProtocolError
from raymq.storage.errors import InvalidInput
from raymq.storage.journal.journal_event import JournalEvent
from raymq.storage.records import crc
from tests.unit.actors.replication.replication_reader import ReplicationReader

P = StreamPosition
LOG = ReplicationFrame(FrameKind.LOG, 7, P(4096, 9), P(4000, 8), b"bytes of the log")


def test_golden_bytes() -> None:
    assert LOG.encode().hex() == (
        "52520108" "00000010" "00000007" "0000000000001000" "0000000000000009" "0000000000000fa0" "0000000000000008"
        "9cdefdec" "352378e4" "6279746573206f6620746865206c6f67"
    )  # fmt: skip
    assert HEAD_BYTES == 52


def test_frames_round_trip_in_chunks_of_any_size() -> None:
    frames = [LOG, ReplicationFrame(FrameKind.ACK, 7, P(1, 2)), ReplicationFrame(FrameKind.REFUSED, 1, body=b"no")]
    whole = b"".join(frame.encode() for frame in frames)
    for step in (1, 7, HEAD_BYTES, 60, len(whole)):
        reader = ReplicationReader()
        found = [frame for at in range(0, len(whole), step) for frame in reader.feed(whole[at : at + step])]
        assert found == frames


def test_each_flipped_bit_raises_protocol_error() -> None:
    whole = LOG.encode()
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        reader = ReplicationReader()
        with pytest.raises(ProtocolError):
            list(reader.feed(damaged))
        with pytest.raises(ProtocolError):
            list(reader.feed(whole))


def test_foreign_bytes_are_no_acknowledgement() -> None:
    for twelve in (bytes(12), b"\0\0\0\x02" + (1 << 40).to_bytes(8, "big")):
        assert list(ReplicationReader().feed(twelve)) == []
        with pytest.raises(ProtocolError):
            list(ReplicationReader().feed(twelve * 5))


def test_body_received_in_place_is_checked() -> None:
    head = read_head(LOG.head())
    assert (head.kind, head.position, head.body_bytes) == (FrameKind.LOG, P(4096, 9), 16)
    assert head.frame(LOG.body) == LOG
    for body in (b"bytes of the loG", b"bytes of the lo", b""):
        with pytest.raises(ProtocolError):
            head.frame(body)


def forge_head(**changes: int) -> bytes:
    """Return a head with changed fields and a correct CRC, as from an attacker."""
    head = bytearray(LOG.head()[:48])
    for name, value in changes.items():
        at, size = {"form": (2, 1), "kind": (3, 1), "length": (4, 4), "offset": (12, 8)}[name]
        head[at : at + size] = value.to_bytes(size, "big", signed=value < 0)
    return bytes(head) + crc.crc32(bytes(head)).to_bytes(4, "big")


@pytest.mark.parametrize("changes", [{"form": 2}, {"kind": 0}, {"kind": 99}, {"length": (1 << 32) - 1}, {"offset": -1}])
def test_invalid_frame_head_raises_protocol_error(changes: dict[str, int]) -> None:
    with pytest.raises(ProtocolError):
        list(ReplicationReader().feed(forge_head(**changes)))


def test_announced_body_allocates_nothing_before_arrival() -> None:
    reader = ReplicationReader()
    tracemalloc.start()
    try:
        assert list(reader.feed(forge_head(length=FrameKind.LOG.max_body_bytes))) == []
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_encoding_oversized_body_raises_protocol_error() -> None:
    for kind in FrameKind:
        with pytest.raises(ProtocolError):
            ReplicationFrame(kind, 1, body=bytes(kind.max_body_bytes + 1)).encode()
    longest = ReplicationFrame(FrameKind.TABLES, 1, body=bytes(FrameKind.TABLES.max_body_bytes))
    assert list(ReplicationReader().feed(longest.encode())) == [longest]


@settings(max_examples=100)
@given(st.binary(max_size=400))
def test_random_bytes_decode_or_raise_protocol_error(content: bytes) -> None:
    for body in (content, bytes([6]) + content):
        for read in (read_hello, read_epochs, read_epoch, read_number):
            with contextlib.suppress(ProtocolError):
                read(body)
    with contextlib.suppress(ProtocolError):
        read_events(ReplicationFrame(FrameKind.STATE, 1, P(0, 1), body=content))
    with contextlib.suppress(ProtocolError):
        list(ReplicationReader().feed(content))


EPOCHS = EpochMap([EpochStart(1, BEGIN), EpochStart(3, P(100, 4))])
HELLO = Hello("c", "broker-a", 2, "dir", "nonce", P(10, 1), EPOCHS, "secret")


def test_frame_bodies_round_trip() -> None:
    assert read_hello(HELLO.encode()) == HELLO
    assert read_epochs(encode_epochs(EPOCHS)) == EPOCHS
    assert read_epoch(encode_epochs([EpochStart(3, P(100, 4))])) == EpochStart(3, P(100, 4))
    assert read_number(encode_number(7)) == 7
    states = [JournalEvent(5, 100, b"a"), JournalEvent(6, 120, b"bc")]
    assert read_events(ReplicationFrame(FrameKind.STATE, 1, P(0, 5), body=encode_events(states))) == states


def test_truncated_hello_raises_protocol_error() -> None:
    body = HELLO.encode()
    whole = len(body) - len(encode_epochs(EPOCHS))
    for length in range(len(body)):
        if length >= whole and (length - whole) % 20 == 0:
            continue
        with pytest.raises(ProtocolError):
            read_hello(body[:length])


def test_inconsistent_frame_bodies_are_refused() -> None:
    with pytest.raises(InvalidInput):
        Hello("c" * 256, "g", 1, "i", "n", BEGIN, EPOCHS).encode()
    with pytest.raises(ProtocolError):
        read_hello(Hello("c", "g", 0, "i", "n", BEGIN, EPOCHS).encode())
    with pytest.raises(ProtocolError):
        read_hello(Hello("c", "g", 1, "i", "n", P(-1, 0), EPOCHS).encode())
    falling = encode_epochs([EpochStart(3, P(100, 4)), EpochStart(1, BEGIN)])
    with pytest.raises(ProtocolError):
        read_epochs(falling)
    with pytest.raises(ProtocolError):
        read_events(ReplicationFrame(FrameKind.STATE, 1, P(0, 1), body=b""))
    with pytest.raises(ProtocolError):
        read_events(ReplicationFrame(FrameKind.STATE, 1, P(0, 1), body=encode_events([JournalEvent(1, 0, b"")])))


def test_hello_with_format_round_trips() -> None:
    extended = replace(HELLO, known_format=7, release="9.8.7")
    assert read_hello(extended.encode()) == extended
    assert HELLO.encode()[0] == 6  # the form that older masters expect, without the format
    assert extended.encode()[0] == 8


def test_hello_fields_of_later_version_are_skipped() -> None:
    extended = replace(HELLO, known_format=7, release="9.8.7")
    body = extended.encode()
    after = sum(1 + len(text.encode()) for text in ("c", "broker-a", "2", "dir", "nonce", "secret", "7", "9.8.7"))
    longer = bytes([9]) + body[1 : 1 + after] + b"\x03new" + body[1 + after :]
    assert read_hello(longer) == extended


@pytest.mark.parametrize("known_format", [0, -1])
def test_hello_with_invalid_format_raises_protocol_error(known_format: int) -> None:
    with pytest.raises(ProtocolError):
        read_hello(replace(HELLO, known_format=known_format).encode())
