"""Test log slices: raw bytes within one file, held while retention removes files."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raymq.storage.errors import InvalidInput, MessageExpired
from raymq.storage.log.record_scan import record_sizes
from raymq.storage.store import Store
from tests.store_records import EXPIRING, SMALL, append, make_record
from tests.store_replication import fill, log_content


def test_log_slices_equal_the_files_and_end_with_them(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", SMALL) as store:
        fill(store, 40)
        begin, shipped = 0, b""
        while begin < store.max_physical_offset:
            with store.log_slice(begin, store.max_physical_offset) as found:
                assert found.offset == begin
                assert found.end == min(begin + 4096 - begin % 4096, store.max_physical_offset)
                shipped += bytes(found.view)
                begin = found.end
        files = b"".join(log_content(tmp_path / "s").values())
        assert len(shipped) > 3 * 4096
        assert shipped == files[: len(shipped)]
        assert not any(files[len(shipped) :])


def test_whole_log_slice_ends_with_a_record(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", SMALL) as store:
        fill(store, 40)
        ends = {record.physical_offset + record.size for record in store.walk(0)}
        ends |= set(range(0, store.max_physical_offset, 4096))
        for most in (1, 100, 500, 2_000):
            begin, steps = 0, 0
            while begin < store.max_physical_offset:
                end = min(begin + most, store.max_physical_offset)
                found = store.log_slice(begin, end, whole=True)
                assert len(found) > 0
                assert found.end in ends
                begin, steps = found.end, steps + 1
            assert steps > store.max_physical_offset // 4096


def test_log_slice_is_valid_after_its_file_is_removed(tmp_path: Path) -> None:
    now = [1_000_000_000]
    with Store.open(tmp_path / "s", EXPIRING, now_ms=lambda: now[0]) as store:
        for number in range(4):
            append(store, make_record(bytes([number]) * 60_000))
        held = store.log_slice(0, 60_000)
        before = bytes(held.view)
        store.flush()
        now[0] += 7_200_000
        assert store.delete_expired().log_files > 0
        assert store.wait_for_removals(10)
        gc.collect()
        assert bytes(held.view) == before
        with pytest.raises(MessageExpired):
            store.log_slice(0, 10)
        held.release()


def test_log_slice_behind_the_log_end_is_refused(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", SMALL) as store:
        append(store, make_record(b"x"))
        end = store.max_physical_offset
        for wrong in ((end, end), (end, end + 1), (0, end + 1), (5, 4)):
            with pytest.raises(InvalidInput):
                store.log_slice(*wrong)


def test_record_like_bytes_within_a_body_are_not_a_record(tmp_path: Path) -> None:
    # A body may even hold a record that names its own place in the log.
    with Store.open(tmp_path / "s", replace(SMALL, commitlog_file_bytes=1 << 16)) as store:
        append(store, make_record(b"first"))
        place = store.max_physical_offset
        inner = make_record(b"inner") * 100
        append(store, make_record(inner), make_record(b"last"))
        whole = [record.size for record in store.walk(0)]
        with store.log_slice(0, store.max_physical_offset) as found:
            assert record_sizes(found.view, 0).tolist() == whole
            assert record_sizes(found.view[:-1], 0).tolist() == whole[:-1]
            assert np.array_equal(record_sizes(found.view[1:], 1), [])
            content = bytearray(found.view)
    for position in range(place + 100, place + len(inner) - 80, 7):
        copy = bytearray(content)
        fake = bytearray(make_record(b"f"))
        fake[28:36] = position.to_bytes(8, "big")
        copy[position : position + len(fake)] = fake
        assert record_sizes(memoryview(copy), 0).tolist() == whole
