"""The checksum that a process uses."""

from __future__ import annotations

import zlib

import pytest

import raymq.actors
from raymq.storage.records import crc


def test_services_and_clients_use_the_quicker_one() -> None:
    assert raymq.actors.__name__
    assert crc.crc32 is not zlib.crc32
    assert crc.crc32(b"123456789") == 0xCBF43926


def test_other_values_are_refused() -> None:
    before = crc.crc32
    with pytest.raises(ValueError, match="CRC-32"):
        crc.use(zlib.adler32)
    assert crc.crc32 is before
