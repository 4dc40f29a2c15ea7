"""Test that a message's keys in a lost second index file are rebuilt, and not doubled in the first one."""

from __future__ import annotations

import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.store import Store
from tests.store_records import SMALL, append, make_record

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("batch_code")]

#: 29 entries per file: three messages of ten keys each do not fit.
CONFIG = replace(SMALL, index_entries=30)
KEYS = 10


def index_entries(directory: Path) -> list[tuple[int, int]]:
    """Return hash and physical offset of all entries of all index files."""
    found: list[tuple[int, int]] = []
    for path in sorted((directory / "index").iterdir()):
        content = path.read_bytes()
        (count,) = struct.unpack_from(">i", content, 36)
        begin = 40 + 4 * CONFIG.index_slots
        found += [struct.unpack_from(">iq", content, begin + 20 * number) for number in range(1, count)]
    return sorted(found)


@pytest.mark.parametrize("of_rocketmq", [False, True], ids=["ours", "RocketMQ's"])
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_missing_keys_of_message_are_indexed_once(tmp_path: Path, lost: int, of_rocketmq: bool) -> None:
    """Guard against fault 13.11. RocketMQ counts a file's last record as indexed, even if some keys are missing."""
    directory = tmp_path / "s"
    with Store.open(directory, CONFIG) as store:
        places = []
        for number in range(12):
            keys = " ".join(f"k{number}-{key}" for key in range(KEYS))
            places += append(store, make_record(b"%d" % number, keys=keys)).physical_offsets.tolist()
    whole = index_entries(directory)
    assert len(whole) == 12 * KEYS
    files = sorted((directory / "index").iterdir())
    for path in files[-lost:]:
        path.unlink()
    if of_rocketmq:
        shutil.rmtree(directory / "raymq")
        content = bytearray(files[-lost - 1].read_bytes())
        begin = 40 + 4 * CONFIG.index_slots
        last = struct.unpack_from(">q", content, begin + 20 * 29 + 4)[0]
        assert last in places
        struct.pack_into(">q", content, 24, last)
        files[-lost - 1].write_bytes(content)
    with Store.open(directory, CONFIG) as store:
        for number in range(12):
            for key in range(KEYS):
                found = store.query("orders", f"k{number}-{key}", 0, 1 << 60, 5)
                assert [record.body for record in found] == [b"%d" % number], (number, key)
    assert index_entries(directory) == whole
