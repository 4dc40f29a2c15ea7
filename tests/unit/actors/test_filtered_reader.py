"""Test reading a queue through an SQL filter: limits, progress, neighbouring messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq.actors.broker.core.reading import filtered_reader
from raymq.actors.broker.core.reading.filtered_reader import ScanBudget, read_filtered
from raymq.actors.errors import BadSubscription
from raymq.actors.filter.tag_expression import SQL92, TAG, MessageFilter
from raymq.storage.config import StoreConfig
from raymq.storage.log.lease import Lease
from raymq.storage.records.record import encode, encode_properties
from raymq.storage.store import Store
from tests.store_records import append
from tests.unit.actors.filters import parse_filter

LARGE_LIMITS = (1_000, 1 << 20)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path, StoreConfig(commitlog_file_bytes=1 << 16, disk_refuse_ratio=1.0)) as made:
        append(made, *(numbered_record(n) for n in range(100)))
        yield made


def numbered_record(number: int) -> bytes:
    own = encode_properties({"n": str(number), "TAGS": "even" if number % 2 == 0 else "odd"})
    return encode("t", 0, b"%d" % number, own, born_timestamp_ms=1, born_host=("127.0.0.1", 1))


def numbers(lease: Lease) -> list[int]:
    assert [record.queue_offset for record in lease.messages()] == lease.queue_offsets.tolist()
    assert [record.size for record in lease.messages()] == lease.sizes.tolist()
    return [int(record.body) for record in lease.messages()]


def sql(expression: str) -> MessageFilter:
    return parse_filter(SQL92, expression)


def test_only_matching_messages_are_read(store: Store) -> None:
    lease = read_filtered(store, "t", 0, 0, *LARGE_LIMITS, sql("n between 10 and 15 or n = 50"))
    assert numbers(lease) == [10, 11, 12, 13, 14, 15, 50]
    assert len(lease.parts) == 2, "neighbours are one piece"
    assert lease.next_offset == 100


def test_limited_read_returns_next_offset(store: Store) -> None:
    wanted = sql("TAGS = 'odd'")
    found, offset = [], 0
    while offset < 100:
        lease = read_filtered(store, "t", 0, offset, 7, 1 << 20, wanted)
        found += numbers(lease)
        assert len(lease) <= 7
        offset = lease.next_offset
    assert found == list(range(1, 100, 2))
    assert numbers(read_filtered(store, "t", 0, 0, 100, 1, wanted)) == [1], "one message whatever its size"
    two = 2 * len(numbered_record(11))
    assert numbers(read_filtered(store, "t", 0, 10, 100, two, wanted)) == [11, 13]


def test_queue_without_match_is_scanned_in_steps(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtered_reader, "_BATCH_MESSAGES", 10)
    monkeypatch.setattr(filtered_reader, "_BATCH_WORK", 0)
    monkeypatch.setattr(filtered_reader, "SCAN_MESSAGES", 30)
    nothing = sql("n > 1000")
    steps = [0]
    while (lease := read_filtered(store, "t", 0, steps[-1], *LARGE_LIMITS, nothing)).next_offset != steps[-1]:
        assert not len(lease)
        steps.append(lease.next_offset)
    assert steps == [0, 30, 60, 90, 100]


def test_tag_filter_uses_queue_entries(store: Store) -> None:
    assert numbers(read_filtered(store, "t", 0, 0, 3, 1 << 20, parse_filter(TAG, "even"))) == [0, 2, 4]


def test_unsupported_filter_raises_bad_subscription(store: Store) -> None:
    for kind, expression in (("LUA", "x"), (SQL92, "n > > 3")):
        with pytest.raises(BadSubscription):
            parse_filter(kind, expression)


def test_queues_of_one_request_share_scan_budget(store: Store) -> None:
    """Guard against scanning one queue a hundred times for one fetch (fault 13.21)."""
    scan = ScanBudget(messages=300)
    nothing = sql("n > 1000")
    assert read_filtered(store, "t", 0, 0, *LARGE_LIMITS, nothing, scan=scan).next_offset == 100
    assert scan.is_exhausted
    assert read_filtered(store, "t", 0, 0, *LARGE_LIMITS, nothing, scan=scan).next_offset == 0
    assert len(read_filtered(store, "t", 0, 0, *LARGE_LIMITS, parse_filter(TAG, "even"), scan=scan)) == 50


def test_long_expression_scans_fewer_messages(store: Store) -> None:
    short, long = ScanBudget(), ScanBudget()
    read_filtered(store, "t", 0, 0, *LARGE_LIMITS, sql("n > 1000"), scan=short)
    read_filtered(store, "t", 0, 0, *LARGE_LIMITS, sql(" or ".join(["n > 1000"] * 100)), scan=long)
    assert filtered_reader.SCAN_MESSAGES - long.messages > 5 * (filtered_reader.SCAN_MESSAGES - short.messages)
