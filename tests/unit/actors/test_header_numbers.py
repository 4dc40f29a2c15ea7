"""Numbers in requests are within the range of RocketMQ's fields: nothing behind a header sees another (fault 13.7)."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator

import pytest

from raymq.actors.errors import ProtocolError
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers import REQUESTS, Header
from raymq.actors.wire.headers.header import Long
from raymq.actors.wire.headers.pop_headers import PopMessage, ReceiptHandle


def numbers() -> Iterator[tuple[type[Header], str, str, int]]:
    """Each number of each request: the header, the attribute, its name on the wire, its bits."""
    for header in REQUESTS.values():
        hints = typing.get_type_hints(header, include_extras=True)
        sample = dict.fromkeys(field.name for field in dataclasses.fields(header))
        for attribute in sample:
            kinds = {hints[attribute], *typing.get_args(hints[attribute])}
            if Long in kinds or (int in kinds and bool not in kinds):
                wire = header(**{**sample, attribute: 7}).fields()
                (name,) = [name for name, value in wire.items() if value == 7]
                yield header, attribute, name, 64 if Long in kinds else 32


@pytest.mark.parametrize(("header", "attribute", "name", "bits"), list(numbers()))
def test_a_number_of_another_range_is_refused(header: type[Header], attribute: str, name: str, bits: int) -> None:
    others = {other: "1" for _, _, other, _ in numbers()}
    texts = dict.fromkeys(header(**dict.fromkeys(f.name for f in dataclasses.fields(header))).fields(), "x")
    end = 1 << (bits - 1)
    for good in (-end, 0, end - 1):
        read = header.read(Command(header.CODE, {**texts, **others, name: str(good)}))
        assert getattr(read, attribute) == good
    for bad in (-end - 1, end, 2**70, "9" * 5_000, "1e9", "", [], {}, float("inf")):
        with pytest.raises(ProtocolError, match=name) as refused:
            header.read(Command(header.CODE, {**texts, **others, name: bad}))
        assert len(str(refused.value)) < 300


def test_times_and_offsets_are_longs() -> None:
    kinds = {(header, attribute): bits for header, attribute, _, bits in numbers()}
    assert kinds[PopMessage, "invisible_time"] == 64
    assert kinds[PopMessage, "max_reconsume_times"] == 32


def test_a_handle_with_a_number_that_cannot_be_is_none() -> None:
    with pytest.raises(ProtocolError):
        ReceiptHandle.read(f"0 {2**70} 1000 0 0 broker-a 0 0")
