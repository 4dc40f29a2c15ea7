"""Test that a fetch answer is refused unless it is for the requested queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from raymq.actors.errors import ProtocolError
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.commands.fetch_commands import INDEX, Fetched, read_epoch, read_fetched, read_single_message
from raymq.actors.wire.frame import Command
from raymq.client.requests.fetch_request import StreamedAnswers
from raymq.storage.records.record import MIN_RECORD_BYTES

RECORD = bytes(MIN_RECORD_BYTES)
received: list[Any] = []


def read_single(body: bytes) -> object:
    return read_single_message(memoryview(body), 2)


def read_last(body: bytes) -> object:
    return read_fetched(Command(ResponseCode.SUCCESS, body=body), 2)


def read_early(body: bytes) -> object:
    answers = StreamedAnswers(received.append, lambda index, _: received.append(index), 2)
    answers.bare(memoryview(body))
    return received.pop()


@pytest.mark.parametrize("read", [read_single, read_last, read_early])
@pytest.mark.parametrize(
    "body", [b"", b"\0\0\0", INDEX.pack(0), INDEX.pack(0) + RECORD[1:], *(INDEX.pack(n) + RECORD for n in (-1, 2))]
)
def test_message_of_unrequested_queue_raises_protocol_error(read: Callable[[bytes], object], body: bytes) -> None:
    """Guard against accepting messages of queues -1 and 2.

    A message of queue -1 was given to the last queue, and one of queue 2 ended the fetching.
    """
    with pytest.raises(ProtocolError):
        read(body)


def parts(
    index: Any, numbers: tuple[Any, ...] = (8, 0, 8), sizes: tuple[int, ...] = (len(RECORD),), offsets: int = 1
) -> list[Fetched]:
    part = [index, *numbers, np.array(sizes, "<i4").tobytes(), np.array([7] * offsets, "<i8").tobytes(), None]
    return read_fetched(Command(ResponseCode.SUCCESS, {"parts": [part]}, RECORD), 2)


@pytest.mark.parametrize("index", [-1, 2, 1 << 40, None, "0", 0.0, True, []])
def test_part_of_unrequested_queue_raises_protocol_error(index: Any) -> None:
    with pytest.raises(ProtocolError):
        parts(index)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("offset", ["8", 8.0, None, True, -1, 1 << 63, []])
def test_part_with_invalid_offset_raises_protocol_error(place: int, offset: Any) -> None:
    """Guard against an invalid next offset that ended all fetches with a TypeError."""
    numbers: list[Any] = [8, 0, 8]
    numbers[place] = offset
    with pytest.raises(ProtocolError):
        parts(0, tuple(numbers))


@pytest.mark.parametrize(("sizes", "offsets"), [((len(RECORD) + 1,), 1), ((-1,), 1), ((len(RECORD),), 0), ((), 1)])
def test_part_with_mismatched_records_raises_protocol_error(sizes: tuple[int, ...], offsets: int) -> None:
    with pytest.raises(ProtocolError):
        parts(0, sizes=sizes, offsets=offsets)


@pytest.mark.parametrize("epoch", ["x", 1.5, -1, 1 << 70, [1], True])
def test_invalid_epoch_raises_protocol_error(epoch: Any) -> None:
    with pytest.raises(ProtocolError):
        read_epoch(Command(ResponseCode.SUCCESS, {"epoch": epoch}))
    assert read_epoch(Command(ResponseCode.SUCCESS, {"epoch": 3})) == 3
    assert read_epoch(Command(ResponseCode.SUCCESS, {})) is None


def test_requested_parts_are_read() -> None:
    assert len(parts(1)) == 1
    assert [read_single_message(memoryview(INDEX.pack(n) + RECORD), 2) for n in (0, 1)] == [(0, RECORD), (1, RECORD)]
    assert [part.index for part in parts(1)] == [1]
