"""Test records stripped of their bodies: all other fields are unchanged."""

from __future__ import annotations

import zlib
from itertools import pairwise

import numpy as np
import pytest

from raymq.storage.records.body_stripping import without_bodies
from raymq.storage.records.record import SYS_FLAG_COMPRESSED, Record, decode, encode, encode_properties
from raymq.storage.records.record_table import SCHEMA, tables_from_records


def make_records() -> list[bytes]:
    """Make records of two topics and host kinds, of various sizes and properties."""
    records = []
    for number in range(200):
        host = "127.0.0.1" if number % 3 else "::1"
        body = bytes([number]) * (number * 37 % 900 + 1)
        properties = (
            encode_properties({"UNIQ_KEY": f"u{number}", "KEYS": f"k{number}", "p": "v" * number})
            if number % 5
            else b""
        )
        records.append(
            encode(
                *("t" if number % 7 else "other", number % 4, zlib.compress(body) if number % 2 else body, properties),
                sys_flag=SYS_FLAG_COMPRESSED if number % 2 else 0,
                born_timestamp_ms=number,
                born_host=(host, 80),
            )
        )
    return records


def decode_pieces(pieces: list[memoryview], sizes: list[int]) -> list[Record]:
    block = b"".join(pieces)
    return [decode(block, start) for start in (np.cumsum(sizes) - sizes).tolist()]


@pytest.mark.parametrize("cuts", [[], [1], [50, 51, 120]], ids=str)
def test_stripping_keeps_all_fields_but_the_body(cuts: list[int]) -> None:
    records = make_records()
    sizes = np.array(list(map(len, records)), np.int32)
    edges = [0, *cuts, len(records)]
    pieces = [memoryview(b"".join(records[a:b])) for a, b in pairwise(edges)]
    bare, bare_sizes = without_bodies(pieces, sizes)
    assert sum(map(len, bare)) == int(bare_sizes.sum()) < sum(map(len, records)) // 2
    before, after = decode_pieces(pieces, sizes.tolist()), decode_pieces(list(bare), bare_sizes.tolist())
    for was, now in zip(before, after, strict=True):
        assert (now.body, now.sys_flag & SYS_FLAG_COMPRESSED) == (b"", 0)
        for field in ("topic", "queue_id", "properties", "born_timestamp_ms", "born_host", "flag", "store_host"):
            assert getattr(now, field) == getattr(was, field)


def test_table_of_stripped_records_has_the_other_columns() -> None:
    records = [record for record in make_records() if decode(record).topic == "t"]
    sizes = np.array(list(map(len, records)), np.int32)
    whole = memoryview(b"".join(records))
    bare, bare_sizes = without_bodies([whole], sizes)
    columns = [name for name in SCHEMA.names if name != "body"]
    (with_bodies,) = tables_from_records(whole, sizes, broker="a")
    (without,) = tables_from_records(bare[0], bare_sizes, broker="a", columns=columns)
    assert without.column_names == columns
    assert without.equals(with_bodies.select(columns))


@pytest.mark.parametrize("columns", [["offset"], ["queue_id", "broker"], ["tags"], ["topic", "body"], ["message_id"]])
def test_column_selection_equals_the_columns_of_the_whole(columns: list[str]) -> None:
    records = make_records()
    sizes = np.array(list(map(len, records)), np.int32)
    whole = memoryview(b"".join(records))
    expected = list(tables_from_records(whole, sizes, broker="a"))
    chosen = list(tables_from_records(whole, sizes, broker="a", columns=columns))
    assert [table.to_pydict() for table in chosen] == [
        table.select([name for name in SCHEMA.names if name in columns]).to_pydict() for table in expected
    ]


def test_damaged_records_are_not_stripped() -> None:
    torn = memoryview(b"\0" * 200)
    sizes = np.array([200], np.int32)
    assert without_bodies([torn], sizes) == ([torn], sizes)
    assert without_bodies([], np.empty(0, np.int32))[0] == []
