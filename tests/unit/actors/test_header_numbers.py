"""Test that headers refuse numbers outside the range of RocketMQ's fields (fault 13.7)."""

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


def number_fields() -> Iterator[tuple[type[Header], str, str, int]]:
    """Yield each number field of each request: header, attribute, name on the wire, bits."""
    for header in REQUESTS.values():
        hints = typing.get_type_hints(header, include_extras=True)
        sample = dict.fromkeys(field.name for field in dataclasses.fields(header))
        for attribute in sample:
            kinds = {hints[attribute], *typing.get_args(hints[attribute])}
            if Long in kinds or (int in kinds and bool not in kinds):
                wire = header(**{**sample, attribute: 7}).fields()
                (name,) = [name for name, value in wire.items() if value == 7]
                yield header, attribute, name, 64 if Long in kinds else 32


@pytest.mark.parametrize(("header", "attribute", "name", "bits"), list(number_fields()))
def test_number_out_of_range_is_refused(header: type[Header], attribute: str, name: str, bits: int) -> None:
    others = {other: "1" for _, _, other, _ in number_fields()}
    texts = dict.fromkeys(header(**dict.fromkeys(f.name for f in dataclasses.fields(header))).fields(), "x")
    end = 1 << (bits - 1)
    for good in (-end, 0, end - 1):
        read = header.read(Command(header.CODE, {**texts, **others, name: str(good)}))
        assert getattr(read, attribute) == good
    for bad in (-end - 1, end, 2**70, "9" * 5_000, "1e9", "", [], {}, float("inf")):
        with pytest.raises(ProtocolError, match=name) as refused:
            header.read(Command(header.CODE, {**texts, **others, name: bad}))
        assert len(str(refused.value)) < 300


def test_invisible_time_is_long_and_reconsume_times_is_int() -> None:
    kinds = {(header, attribute): bits for header, attribute, _, bits in number_fields()}
    assert kinds[PopMessage, "invisible_time"] == 64
    assert kinds[PopMessage, "max_reconsume_times"] == 32


def test_receipt_handle_with_number_out_of_range_is_refused() -> None:
    with pytest.raises(ProtocolError):
        ReceiptHandle.read(f"0 {2**70} 1000 0 0 broker-a 0 0")


def test_receipt_handle_of_rocketmqs_proxy_has_a_ninth_word() -> None:
    handle = ReceiptHandle.read("0 1795911778035 15000 0 0 broker-b 3 7 4711")
    assert (handle.broker, handle.queue_id, handle.offset) == ("broker-b", 3, 7)
    for text in ("0 1 2 0 0 broker-b 3 7 x", "0 1 2 0 0 broker-b 3 7 1 2"):
        with pytest.raises(ProtocolError):
            ReceiptHandle.read(text)
