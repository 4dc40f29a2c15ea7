"""Test that a flipped bit in a mirrored file is ignored, or is reported."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest

from raymq.storage.tables.mirrored_file import decode_mirrored
from tests.former_staged_rows import kept_twice

VALUE = [["p1", "p2"], [["t", 0, 17]], 4096, {"t": "id"}, None, 300, 0]


def test_flipped_bit_in_a_mirrored_file_is_ignored(tmp_path: Path) -> None:
    content = kept_twice(VALUE)
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        assert decode_mirrored(bytes(changed), tmp_path) == VALUE


def test_mirrored_file_of_an_older_version_is_read(tmp_path: Path) -> None:
    assert decode_mirrored(msgpack.packb(["t", 1]), tmp_path) == ["t", 1]


def test_two_damaged_copies_raise_an_error(tmp_path: Path) -> None:
    content = bytearray(kept_twice(["value"]))
    content[9] ^= 1
    content[-1] ^= 1
    with pytest.raises(ValueError, match="extra data"):
        decode_mirrored(bytes(content), tmp_path)
