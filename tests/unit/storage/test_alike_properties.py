"""Properties that stand in the same places of all records are cut there, and are what a search finds, too."""

from __future__ import annotations

import numpy as np
import pytest

from raymq.storage import record, record_batch
from raymq.storage.alike_properties import alike_properties
from raymq.storage.record_table import table_of_batch

pytestmark = pytest.mark.usefixtures("batch_code")

COUNT = 40


def batch(*properties: dict[str, str]) -> record_batch.Batch:
    """Records that have these properties by turns."""
    records = [
        record.encode(
            "orders",
            1,
            b"body %d" % number,
            record.encode_properties(properties[number % len(properties)]),
            born_timestamp_ms=1_700_000_000_000 + number,
            born_host=b"\x7f\0\0\x01\0\0\0\0",
        )
        for number in range(COUNT)
    ]
    return record_batch.parse(b"".join(records), np.array([len(each) for each in records], np.int32))


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"UNIQ_KEY": "A0"},
        {"UNIQ_KEY": "A0", "KEYS": "k1", "TAGS": "paid"},
        {"UNIQ_KEY": "A0", "colour": "red", "TAGS": "paid", "size": "xl"},
        {"colour": "red"},
        {"RETRY_TOPIC": "first", "ORIGIN_MESSAGE_ID": "0A" * 16, "UNIQ_KEY": "A0"},
    ],
)
def test_the_same_table_as_by_searching(properties: dict[str, str]) -> None:
    others = {name: value[:-1] + "9" for name, value in properties.items()}
    alike = batch(properties, others)
    if properties:
        assert alike.tails is not None
        assert alike_properties(alike.tails) is not None
    table = table_of_batch(alike, broker="b")
    alike._tails = [None]
    assert table.equals(table_of_batch(alike, broker="b"))
    table.validate(full=True)


def test_what_is_not_ascii_is_left_to_the_search() -> None:
    tails = batch({"colour": "r\xe4"}, {"colour": "r\xf6"}).tails
    assert tails is not None
    assert alike_properties(tails) is None
