"""Test that properties at equal positions in all records are sliced as by a search."""

from __future__ import annotations

import numpy as np
import pytest

from raymq.storage.records import native_kernels, record, record_batch, record_table
from raymq.storage.records.record_table import table_from_records
from raymq.storage.records.uniform_properties import alike_properties

pytestmark = pytest.mark.usefixtures("batch_code")

COUNT = 40


def batch(*properties: dict[str, str]) -> record_batch.Batch:
    """Return records that have these properties in turn."""
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
def test_uniform_properties_give_the_same_table_as_a_search(
    properties: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {name: value[:-1] + "9" for name, value in properties.items()}
    alike = batch(properties, others)
    if properties and native_kernels.kernels is not None:
        assert alike_properties(alike) is not None
    whole = alike.records, alike.sizes.astype(np.int32)
    table = table_from_records(*whole, broker="b")
    monkeypatch.setattr(record_table, "alike_properties", lambda _: None)
    assert table.equals(table_from_records(*whole, broker="b"))
    table.validate(full=True)


@pytest.mark.parametrize(
    "properties",
    [
        [{"colour": "r\xe4"}, {"colour": "r\xf6"}],
        [{"KEYS": "a b"}, {"KEYS": "c d"}],
        [{"colour": "red"}, {"size": "xl0"}],
        [{"colour": "red"}, {"colour": "red", "size": "xl"}],
    ],
)
def test_nonuniform_properties_are_left_to_the_search(properties: list[dict[str, str]]) -> None:
    assert alike_properties(batch(*properties)) is None


def test_values_of_different_lengths_need_the_compiled_kernels(batch_code: str) -> None:
    found = alike_properties(batch({"UNIQ_KEY": "A", "n": "1"}, {"UNIQ_KEY": "BCD", "n": "23"}))
    assert (found is not None) == (batch_code == "compiled")
    if found is not None:
        assert found.first("UNIQ_KEY").to_pylist() == ["A", "BCD"] * (COUNT // 2)
        assert found.user().to_pylist() == [[("n", "1")], [("n", "23")]] * (COUNT // 2)
