"""Test what a read checks: checksums on request, else each record of the newest file once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raymq.storage.config import StoreConfig
from raymq.storage.errors import StoreCorrupt
from raymq.storage.log import message_reader
from raymq.storage.records import record_batch
from raymq.storage.records.java_hash import tags_code
from raymq.storage.records.record import encode, encode_properties
from raymq.storage.store import Store
from tests.store_records import SMALL

pytestmark = pytest.mark.usefixtures("batch_code")

CONFIG = replace(
    SMALL, commitlog_file_bytes=1 << 20, consume_queue_file_entries=1000, index_slots=64, index_entries=4096
)


def put(store: Store, queue_id: int, bodies: list[bytes]) -> None:
    records = [
        encode("orders", queue_id, body, encode_properties({"TAGS": "t"}), born_timestamp_ms=1, born_host=bytes(8))
        for body in bodies
    ]
    store.append(b"".join(records), np.array([len(record) for record in records], np.int32))


def numbered_bodies(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


def bodies(store: Store, offset: int, **how: object) -> list[bytes]:
    with store.read("orders", 0, offset, **how) as lease:  # type: ignore[arg-type]
        return [record.body for record in lease.messages()]


@pytest.fixture
def checked_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record how many records each vectorised check of a read covers."""
    calls: list[int] = []

    def counting(records: object, sizes: np.ndarray, **how: bool) -> object:
        calls.append(len(sizes))
        return record_batch.parse(records, sizes, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(message_reader, "parse", counting)
    return calls


def test_appended_records_are_not_checked_again(tmp_path: Path, checked_counts: list[int]) -> None:
    with Store.open(tmp_path, CONFIG) as store:
        put(store, 0, numbered_bodies(100))
        assert bodies(store, 0, max_messages=100, check_crc=False) == numbered_bodies(100)
        assert checked_counts == []
        assert bodies(store, 0, max_messages=100) == numbered_bodies(100)
        assert checked_counts == [100], "who asks for the checksums gets them compared"


def test_records_are_checked_once_after_open(tmp_path: Path, checked_counts: list[int]) -> None:
    with Store.open(tmp_path, CONFIG) as store:
        put(store, 0, numbered_bodies(100))
    with Store.open(tmp_path, CONFIG) as store:
        for offset, count in ((0, 60), (0, 60), (50, 50), (0, 100)):
            assert (
                bodies(store, offset, max_messages=count, check_crc=False)
                == numbered_bodies(100)[offset : offset + count]
            )
        assert checked_counts == [60, 50]


def test_record_damaged_while_closed_is_refused(tmp_path: Path) -> None:
    small = StoreConfig(commitlog_file_bytes=4096, disk_refuse_ratio=1.0)
    with Store.open(tmp_path, small) as store:
        put(store, 0, numbered_bodies(200))
        size = store.entries("orders", 0, 0, 1)[1][0]
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as stream:
        stream.seek(3 * int(size) + 88)
        stream.write(b"?")
    with Store.open(tmp_path, small) as store:
        assert bodies(store, 0, max_messages=200) == numbered_bodies(3)
        with pytest.raises(StoreCorrupt):
            store.read("orders", 0, 3)
        assert bodies(store, 4, max_messages=200) == numbered_bodies(200)[4:]
        assert bodies(store, 0, max_messages=200) == numbered_bodies(3)


def test_read_skips_records_of_other_queues(tmp_path: Path) -> None:
    with Store.open(tmp_path, CONFIG) as store:
        for number in range(300):
            put(store, number % 3, [b"%06d" % number])
        assert bodies(store, 0, max_messages=100) == numbered_bodies(300)[::3]
        assert bodies(store, 90, max_messages=2) == [b"000270", b"000273"]


@pytest.mark.parametrize("first_bytes", [1, 500])
def test_byte_limit_of_a_read_is_exact(tmp_path: Path, first_bytes: int) -> None:
    with Store.open(tmp_path, CONFIG) as store:
        put(store, 0, [b"a" * first_bytes, *(b"b" * 50 for _ in range(150)), *(b"c" for _ in range(50))])
        sizes = store.entries("orders", 0, 0, 1000)[1]
        for bound in (-1, 0, 1, int(sizes[0]), int(sizes[:77].sum()), int(sizes[:77].sum()) - 1, 1 << 20):
            expected = max(1, int(np.searchsorted(np.cumsum(sizes), bound, "right")))
            with store.read("orders", 0, 0, 1000, bound) as lease:
                assert lease.sizes.tolist() == sizes[:expected].tolist()
                assert len(lease.records) == sizes[:expected].sum()
                assert lease.next_offset == expected


@pytest.mark.parametrize("check_crc", [True, False])
@pytest.mark.parametrize("opened_again", [True, False])
@pytest.mark.parametrize(("codes", "passes"), [(None, True), ({tags_code("t")}, True), ({tags_code("u")}, False)])
def test_read_of_the_last_message_applies_the_tag_filter(
    tmp_path: Path, check_crc: bool, opened_again: bool, codes: set[int] | None, passes: bool
) -> None:
    with Store.open(tmp_path, CONFIG) as store:
        put(store, 0, numbered_bodies(3))
        put(store, 1, numbered_bodies(1))
    with Store.open(tmp_path, CONFIG) as store:
        if not opened_again:
            put(store, 0, [b"one more"])
        expected = numbered_bodies(3)[2] if opened_again else b"one more"
        offset = store.max_offset("orders", 0) - 1
        with store.read("orders", 0, offset, 10, 1, codes, check_crc=check_crc) as lease:
            assert [record.body for record in lease.messages()] == [expected] * passes
            assert lease.queue_offsets.tolist() == [offset] * passes
            assert lease.sizes.tolist() == [len(lease.records)] * passes
            assert lease.next_offset == offset + 1


@pytest.mark.parametrize("max_bytes", [0, -1, -91, -500, -1_000_000])
def test_read_without_byte_budget_returns_the_first_message(tmp_path: Path, max_bytes: int) -> None:
    with Store.open(tmp_path, CONFIG) as store:
        put(store, 0, numbered_bodies(5))
        assert bodies(store, 2, max_messages=3, max_bytes=max_bytes) == [b"%06d" % 2]
