"""Test which messages came with one append, also after its end was lost."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raymq.storage import checkpointer
from raymq.storage.errors import OffsetOutOfRange, QueueNotFound
from raymq.storage.store import Store
from tests.store_records import SMALL, append, make_record

CONFIG = replace(SMALL, flush_interval_ms=3_600_000)


class Clock:
    now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


def records(count: int, size: int = 20, queue_id: int = 0) -> list[bytes]:
    return [make_record(b"x" * size, queue_id=queue_id) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 2, 12, 13, 40])
def test_append_of_any_length_is_distinguished_from_the_next(tmp_path: Path, count: int) -> None:
    clock = Clock()
    with Store.open(tmp_path, CONFIG, now_ms=clock) as store:
        for _ in range(3):
            append(store, *records(count))
            clock.now_ms += 1
        for begin in (0, count, 2 * count):
            assert store.appended_together("orders", 0, begin, 10_000) == count
            assert store.appended_together("orders", 0, begin, count - 1) == count - 1
            assert store.appended_together("orders", 0, begin + count - 1, 10_000) == 1
        assert store.appended_together("orders", 0, 3 * count, 10_000) == 0


@pytest.mark.parametrize(("count", "size"), [(4, 1_500), (8, 3_000), (40, 1_000)])
def test_append_across_several_log_files_is_one_append(tmp_path: Path, count: int, size: int) -> None:
    clock = Clock()
    with Store.open(tmp_path, CONFIG, now_ms=clock) as store:
        append(store, *records(count, size))
        assert len(store._log.files.starts) > 1
        assert store.appended_together("orders", 0, 0, count) == count


def test_record_of_another_queue_ends_the_append(tmp_path: Path) -> None:
    # The record of the other queue has the same store time.
    with Store.open(tmp_path, CONFIG, now_ms=Clock()) as store:
        append(store, *records(3), *records(1, queue_id=1), *records(2))
        assert store.appended_together("orders", 0, 0, 10) == 3
        assert store.appended_together("orders", 0, 3, 10) == 2


@pytest.mark.parametrize("born_host", [("10.0.0.1", 5), ("2001:db8::1", 5)], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("others", [1, 20])
def test_append_after_power_loss_is_not_joined_to_a_former_one(
    tmp_path: Path, others: int, born_host: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # This holds also where the clock has not moved and the records lie back to back.
    clock = Clock()
    monkeypatch.setattr(checkpointer, "boot_id", lambda: "an earlier boot")
    with Store.open(tmp_path / "0", CONFIG, now_ms=clock) as store:
        result = append(store, *[make_record(b"x", born_host=born_host)] * 10)
        shutil.copytree(tmp_path / "0", tmp_path / "1")
        clock.now_ms -= 1_000_000
    left = tmp_path / "1" / "commitlog" / f"{0:020d}"
    cut = int(result.physical_offsets[4])
    left.write_bytes(left.read_bytes()[:cut].ljust(CONFIG.commitlog_file_bytes, b"\0"))
    with Store.open(tmp_path / "1", CONFIG, now_ms=clock) as store:
        assert store.max_offset("orders", 0) == 4
        append(store, *records(others))
        places, sizes, _ = store.entries("orders", 0, 3, 2)
        assert places[1] == places[0] + sizes[0]
        assert store.appended_together("orders", 0, 0, 10) == 4
        assert store.appended_together("orders", 0, 4, 100) == others


def test_store_timestamp_is_the_clocks_without_power_loss(tmp_path: Path) -> None:
    clock = Clock()
    for life in range(4):
        store = Store.open(tmp_path, CONFIG, now_ms=clock)
        assert append(store, *records(1)).store_timestamp_ms == clock.now_ms
        if life % 2:
            store.close()
        else:
            store._flusher.stop()
            store._abandon()


def test_missing_queue_and_offset_raise_errors(tmp_path: Path) -> None:
    with Store.open(tmp_path, CONFIG) as store:
        with pytest.raises(QueueNotFound):
            store.appended_together("orders", 0, 0, 10)
        append(store, *records(1))
        with pytest.raises(OffsetOutOfRange):
            store.appended_together("orders", 0, 2, 10)


@pytest.mark.parametrize("queue_ids", [[0], [0, 1], [0, 0, 1, 2, 1, 0]])
def test_records_of_several_queues_get_consecutive_offsets(tmp_path: Path, queue_ids: list[int]) -> None:
    with Store.open(tmp_path, CONFIG) as store:
        expected = dict.fromkeys(queue_ids, 0)
        for _ in range(3):
            result = append(store, *[make_record(queue_id=queue_id) for queue_id in queue_ids])
            for queue_id, offset in zip(queue_ids, np.asarray(result.queue_offsets).tolist(), strict=True):
                assert offset == expected[queue_id]
                expected[queue_id] += 1
        assert {queue_id: store.max_offset("orders", queue_id) for queue_id in expected} == expected
