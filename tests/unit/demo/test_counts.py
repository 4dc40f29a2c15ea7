"""Test the counts of the demo: consistent counts, differences, and duplicate rows."""

from __future__ import annotations

import pytest

from raymq.client import ConsumeResult, Message, ReceivedMessage
from raymq.demo.counts import Counts
from raymq.demo.demo_messaging import ROW, RowListener, as_message, wait_until
from raymq.demo.dirty_rule import DirtyRule
from raymq.demo.input_plan import InputRecord
from raymq.storage.records.record import decode

RULE = DirtyRule("csv", ("id", "n"), (("n", "int"),), "id")
HOST = bytes([127, 0, 0, 1, 0, 0, 0, 0])


def counts(**changed: int) -> Counts:
    right = {
        "rows": 10,
        "sent": 10,
        "consumed": 8,
        "dirty": 2,
        "dead_letters": 2,
        "spark_rows": 10,
        "spark_dead_letters": 2,
    }
    return Counts(**{**right, **changed})


def test_consistent_counts_have_no_differences() -> None:
    assert counts().differences() == []


@pytest.mark.parametrize("name", ["sent", "consumed", "dead_letters", "spark_rows", "spark_dead_letters"])
@pytest.mark.parametrize("by", [-1, 1])
def test_each_wrong_count_is_a_difference(name: str, by: int) -> None:
    assert counts(**{name: getattr(counts(), name) + by}).differences() != []


def received_message(body: bytes, row: int, reconsume_times: int = 0) -> ReceivedMessage:
    record = decode(Message("events", body, properties={ROW: str(row)}).encode(1, HOST))
    record.reconsume_times = reconsume_times
    return ReceivedMessage.from_record(record, "broker-a")


def test_listener_fails_dirty_rows_and_counts_each_row_once() -> None:
    listener = RowListener(RULE)
    clean, dirty = b'{"id":"a","n":1}', b'{"id":"b","n":"NA"}'
    ok, later = ConsumeResult.SUCCESS, ConsumeResult.RECONSUME_LATER
    assert listener([received_message(clean, 1), received_message(dirty, 2)]) == [ok, later]
    assert listener([received_message(dirty, 2, 1), received_message(clean, 1)]) == [later, ok]
    assert (listener.consumed, listener.deliveries, listener.retries, listener.duplicates) == (1, 4, 1, 1)


@pytest.mark.parametrize(
    ("value", "tag"), [("UA", "UA"), ("", "none"), ("two words", "two%20words"), ("a||b", "a%7C%7Cb"), (7, "7")]
)
def test_any_value_becomes_a_tag(value: object, tag: str) -> None:
    record = InputRecord(1, "a key", b"{}", False, None, {"c": value})
    message = as_message("events", record, "c")
    assert (message.tags, message.keys, message.properties) == (tag, ("a%20key",), {ROW: "1"})


def test_wait_ends_without_progress() -> None:
    assert wait_until(lambda: True, lambda: 0, 0.0)
    assert not wait_until(lambda: False, lambda: 0, 0.0)
