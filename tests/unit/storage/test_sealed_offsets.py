"""A bit that flips in the files of offsets is noticed: a digit that has changed took a group past its messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raymq.storage.tables.consumer_offset_store import ConsumerOffsetStore


def opened(root: Path, *, writable: bool = False) -> ConsumerOffsetStore:
    return ConsumerOffsetStore(root / "config", root / "progress.journal", writable=writable)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Group and level were at 1 and then at 1042; what was at 1 is in the spare copies."""
    for offset in (1, 1042):
        progress = opened(tmp_path, writable=True)
        progress.consumer_offsets.commit("g", "t", 0, offset)
        progress.delay_offsets.commit(1, offset, 0)
        progress.close(fold=True)
    return tmp_path


def offsets(root: Path) -> tuple[int | None, int | None]:
    progress = opened(root)
    try:
        return progress.consumer_offsets.get("g", "t", 0), progress.delay_offsets.get(1)
    finally:
        progress.close(fold=False)


@pytest.mark.parametrize(("name", "before"), [("consumerOffset.json", (1, 1042)), ("delayOffset.json", (1042, 1))])
def test_no_bit_that_flips_is_believed(root: Path, name: str, before: tuple[int, int]) -> None:
    """88 of 2,096 had set a group's offset further ahead: it skipped what lay between without a word."""
    path = root / "config" / name
    content = path.read_bytes()
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        assert offsets(root) in ((1042, 1042), before)


def test_what_rocketmq_or_an_older_version_wrote_has_no_checksum(root: Path) -> None:
    for path in (root / "config").glob("*Offset.json"):
        told = json.loads(path.read_bytes())
        del told["raymqCrc"]
        path.write_text(json.dumps(told).replace("1042", "1043"))
    assert offsets(root) == (1043, 1043)
