"""Test how the sizes of index files are found when they are not written down."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.config import StoreConfig
from raymq.storage.log import index_sizes
from raymq.storage.log.index_file import file_bytes
from raymq.storage.store import Store
from tests import golden_stores as golden
from tests.store_records import SMALL, append, make_record


@pytest.mark.parametrize("name", golden.NAMES)
def test_rocketmq_directory_opens_without_configured_sizes(tmp_path: Path, name: str) -> None:
    directory = golden.unpack(name, tmp_path)
    expected = golden.answers(name)
    with Store.open(directory, StoreConfig(disk_refuse_ratio=1.0)) as store:
        config = store.config
        assert (config.commitlog_file_bytes, config.consume_queue_file_entries) == (262_144, 60)
        assert (config.index_slots, config.index_entries) == (500, 1000)
        assert store.max_physical_offset == expected["max_physical_offset"]
        for message in expected["messages"][::10]:
            if message["unique_key"] and message["unique_key"] == golden.own_unique_key(message):
                found = store.query(message["topic"], message["unique_key"], 0, golden.FOREVER_MS, 1000)
                assert message["physical_offset"] in {record.physical_offset for record in found}


@pytest.mark.parametrize(("slots", "entries"), [(50, 40), (1, 90), (1000, 1000), (503, 200), (504, 200), (7, 30)])
@pytest.mark.parametrize("count", [1, 2, 29, 300])
@pytest.mark.parametrize("keys", ["", "a a b", "k{i} common"])
def test_index_sizes_are_found_for_any_configuration(
    tmp_path: Path, slots: int, entries: int, count: int, keys: str
) -> None:
    config = replace(SMALL, commitlog_file_bytes=1 << 17, index_slots=slots, index_entries=entries)
    with Store.open(tmp_path, config) as store:
        for i in range(count):
            append(store, make_record(b"%d" % i, keys=keys.format(i=i) or None, unique_key=f"U{i}"))
    assert index_sizes.find(tmp_path / "index", 5_000_000, 20_000_000) == (slots, entries)
    assert index_sizes.find(tmp_path / "index", slots, entries) == (slots, entries)
    # Without RayMQ's own files, as in a directory of RocketMQ.
    shutil.rmtree(tmp_path / "raymq")
    with Store.open(tmp_path, replace(config, index_slots=9, index_entries=9)) as store:
        assert (store.config.index_slots, store.config.index_entries) == (slots, entries)
        assert len(store.query("orders", f"U{count - 1}", 0, 1 << 62, 9)) == 1


def test_folder_without_index_files_has_no_sizes(tmp_path: Path) -> None:
    assert index_sizes.find(tmp_path / "nowhere", 5, 5) is None
    for name, content in {
        "20260101000000000": b"",
        "20260101000000001": bytes(file_bytes(50, 40)),
        "20260101000000002": b"\x01" * file_bytes(50, 40),
        "notes": b"x" * 1000,
    }.items():
        (tmp_path / name).write_bytes(content)
    assert index_sizes.find(tmp_path, 50, 40) is None
