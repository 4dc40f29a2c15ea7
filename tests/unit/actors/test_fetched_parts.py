"""An answer to a fetch is of the queues that were asked for, or it is none."""

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
told: list[Any] = []


def one(body: bytes) -> object:
    return read_single_message(memoryview(body), 2)


def last(body: bytes) -> object:
    return read_fetched(Command(ResponseCode.SUCCESS, body=body), 2)


def early(body: bytes) -> object:
    answers = StreamedAnswers(told.append, lambda index, _: told.append(index), 2)
    answers.bare(memoryview(body))
    return told.pop()


@pytest.mark.parametrize("read", [one, last, early])
@pytest.mark.parametrize(
    "body", [b"", b"\0\0\0", INDEX.pack(0), INDEX.pack(0) + RECORD[1:], *(INDEX.pack(n) + RECORD for n in (-1, 2))]
)
def test_one_message_of_no_queue_that_was_asked_for_is_a_protocol_error(
    read: Callable[[bytes], object], body: bytes
) -> None:
    """One of queue -1 was given to the last of the queues, and one of queue 2 ended the fetching."""
    with pytest.raises(ProtocolError):
        read(body)


def parts(
    index: Any, numbers: tuple[Any, ...] = (8, 0, 8), sizes: tuple[int, ...] = (len(RECORD),), offsets: int = 1
) -> list[Fetched]:
    part = [index, *numbers, np.array(sizes, "<i4").tobytes(), np.array([7] * offsets, "<i8").tobytes(), None]
    return read_fetched(Command(ResponseCode.SUCCESS, {"parts": [part]}, RECORD), 2)


@pytest.mark.parametrize("index", [-1, 2, 1 << 40, None, "0", 0.0, True, []])
def test_a_part_of_no_queue_that_was_asked_for_is_a_protocol_error(index: Any) -> None:
    with pytest.raises(ProtocolError):
        parts(index)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("offset", ["8", 8.0, None, True, -1, 1 << 63, []])
def test_a_part_whose_offsets_are_none_is_a_protocol_error(place: int, offset: Any) -> None:
    """Where the next fetch begins was taken as it came, and ended the fetches of all queues with a TypeError."""
    numbers: list[Any] = [8, 0, 8]
    numbers[place] = offset
    with pytest.raises(ProtocolError):
        parts(0, tuple(numbers))


@pytest.mark.parametrize(("sizes", "offsets"), [((len(RECORD) + 1,), 1), ((-1,), 1), ((len(RECORD),), 0), ((), 1)])
def test_a_part_of_other_records_than_came_is_a_protocol_error(sizes: tuple[int, ...], offsets: int) -> None:
    with pytest.raises(ProtocolError):
        parts(0, sizes=sizes, offsets=offsets)


@pytest.mark.parametrize("epoch", ["x", 1.5, -1, 1 << 70, [1], True])
def test_an_epoch_that_is_none_is_a_protocol_error(epoch: Any) -> None:
    with pytest.raises(ProtocolError):
        read_epoch(Command(ResponseCode.SUCCESS, {"epoch": epoch}))
    assert read_epoch(Command(ResponseCode.SUCCESS, {"epoch": 3})) == 3
    assert read_epoch(Command(ResponseCode.SUCCESS, {})) is None


def test_what_was_asked_for_is_read() -> None:
    assert len(parts(1)) == 1
    assert [read_single_message(memoryview(INDEX.pack(n) + RECORD), 2) for n in (0, 1)] == [(0, RECORD), (1, RECORD)]
    assert [part.index for part in parts(1)] == [1]
