"""Test that a flipped bit in the offset files is detected by a checksum."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raymq.storage.tables.consumer_offset_store import ConsumerOffsetStore


def open_offset_store(root: Path, *, writable: bool = False) -> ConsumerOffsetStore:
    return ConsumerOffsetStore(root / "config", root / "progress.journal", writable=writable)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Create offset files at 1042, with spare copies at 1."""
    for offset in (1, 1042):
        progress = open_offset_store(tmp_path, writable=True)
        progress.consumer_offsets.commit("g", "t", 0, offset)
        progress.delay_offsets.commit(1, offset, 0)
        progress.close(fold=True)
    return tmp_path


def offsets(root: Path) -> tuple[int | None, int | None]:
    progress = open_offset_store(root)
    try:
        return progress.consumer_offsets.get("g", "t", 0), progress.delay_offsets.get(1)
    finally:
        progress.close(fold=False)


@pytest.mark.parametrize(("name", "before"), [("consumerOffset.json", (1, 1042)), ("delayOffset.json", (1042, 1))])
def test_flipped_bit_in_an_offset_file_is_ignored(root: Path, name: str, before: tuple[int, int]) -> None:
    # 88 of 2,096 flips used to set a group's offset further ahead: it skipped messages silently.
    path = root / "config" / name
    content = path.read_bytes()
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        assert offsets(root) in ((1042, 1042), before)


def test_offset_file_without_checksum_is_read(root: Path) -> None:
    for path in (root / "config").glob("*Offset.json"):
        table = json.loads(path.read_bytes())
        del table["raymqCrc"]
        path.write_text(json.dumps(table).replace("1042", "1043"))
    assert offsets(root) == (1043, 1043)
