"""Test that a flipped bit in the offset files changes nothing, and that files without a seal are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raymq.storage.journal.recovery_bounds import UNBOUNDED
from raymq.storage.rocketmq_files import RocketMQFiles
from raymq.storage.state_opening import open_state
from raymq.storage.store_paths import StorePaths
from raymq.storage.tables.state_tables import StateTables


def open_tables_and_files(root: Path, *, writable: bool = False) -> tuple[StateTables, RocketMQFiles]:
    """Open the tables with RocketMQ's files, without the log to which a store clamps them."""
    tables = StateTables()
    journal, files = open_state(StorePaths(root), tables, lambda _: None, writable=writable)
    journal.clamp(UNBOUNDED)
    return tables, files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Create offset files at 1042, and a journal whose newest offsets are 1, as a kill leaves them."""
    tables, files = open_tables_and_files(tmp_path, writable=True)
    for offset in (1042, 1):
        tables.consumer_offsets.commit("g", "t", 0, offset)
        tables.delay_offsets.commit(1, offset, 0)
        if offset == 1042:
            files.begin_export()()
    return tmp_path


def offsets(root: Path) -> tuple[int | None, int | None]:
    tables, _ = open_tables_and_files(root)
    return tables.consumer_offsets.get("g", "t", 0), tables.delay_offsets.get(1)


@pytest.mark.parametrize("name", ["consumerOffset.json", "delayOffset.json"])
def test_flipped_bit_in_an_offset_file_sets_no_offset(root: Path, name: str) -> None:
    # 88 of 2,096 flips used to set a group's offset further ahead: it skipped messages silently. A flip in the seal's
    # name made the file RocketMQ's, whose offsets are taken.
    path = root / "config" / name
    content = path.read_bytes()
    seal = content.index(b"raymqCrc")
    every_bit = [(at, bit) for at in range(seal, seal + 8) for bit in range(8)]
    for at, bit in [*((at, at % 8) for at in range(len(content))), *every_bit]:
        changed = bytearray(content)
        changed[at] ^= 1 << bit
        path.write_bytes(changed)
        assert offsets(root) == (1, 1), at


def test_offset_file_without_checksum_is_read(root: Path) -> None:
    for path in (root / "config").glob("*Offset.json"):
        table = json.loads(path.read_bytes())
        del table["raymqCrc"]
        path.write_text(json.dumps(table).replace("1042", "1043"))
    assert offsets(root) == (1043, 1043)
