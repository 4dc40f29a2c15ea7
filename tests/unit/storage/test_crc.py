"""Test the CRC function that a process uses."""

from __future__ import annotations

import zlib

import pytest

import raymq.actors
from raymq.storage.records import crc


def test_services_and_clients_use_a_crc_faster_than_zlib() -> None:
    assert raymq.actors.__name__
    assert crc.crc32 is not zlib.crc32
    assert crc.crc32(b"123456789") == 0xCBF43926


def test_crc_function_with_wrong_values_is_refused() -> None:
    before = crc.crc32
    with pytest.raises(ValueError, match="CRC-32"):
        crc.use(zlib.adler32)
    assert crc.crc32 is before
