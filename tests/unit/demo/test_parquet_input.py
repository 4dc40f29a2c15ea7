"""Test the demo's Parquet reader: rows are records, and column types decide which are dirty."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
from pathlib import Path

import pyarrow as pa
import pytest

from raymq.demo.demo_input import describe, read
from raymq.storage.errors import InvalidInput
from tests.demo_records import records_of, write_parquet


def test_parquet_rows_of_all_types_are_clean(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": pa.array(["a", "b"]),
            "whole": pa.array([1, None], pa.int64()),
            "real": pa.array([math.nan, math.inf]),
            "exact": pa.array([decimal.Decimal("1.10"), None]),
            "flag": pa.array([True, None]),
            "day": pa.array([dt.date(2013, 1, 1), None]),
            "at": pa.array([1, None], pa.timestamp("ns", "UTC")),
            "took": pa.array([1_500_000_000, None], pa.duration("ns")),
            "raw": pa.array([b"ok", b"\xff"]),
            "list": pa.array([[1, 2], []]),
            "struct": pa.array([{"x": 1}, None]),
            "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
            "word": pa.array(["x", "x"]).dictionary_encode(),
            "digits": pa.array(["007", "x"]),
        }
    )
    path = write_parquet(tmp_path / "f.parquet", table)
    plan = describe(path)
    assert [name for name, column_type in plan.types.items() if column_type != "text"] == ["whole", "real", "exact"]
    first, second = records_of(path)
    assert first.values == json.loads(first.body) == {
        "id": "a", "whole": 1, "real": None, "exact": "1.10", "flag": True, "day": "2013-01-01",
        "at": "1970-01-01T00:00:00+00:00", "took": 1.5, "raw": "ok", "list": [1, 2], "struct": {"x": 1},
        "map": [["k", 1]], "word": "x", "digits": "007",
    }  # fmt: skip
    assert second.values["real"] == "Infinity"
    assert second.values["raw"] == "/w=="
    assert not first.dirty
    assert not second.dirty


def test_parquet_empty_key_is_dirty(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "f.parquet", pa.table({"n": [1, 2, 3], "id": ["a", None, ""]}))
    assert [each.dirty for each in records_of(path, "id")] == [False, True, True]
    assert [each.key for each in records_of(path)] == ["1", "2", "3"]


def test_parquet_reads_many_batches_and_repeated_names(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(range(5_000)), pa.array(range(5_000))], names=["id", "id"])
    found = records_of(write_parquet(tmp_path / "f.parquet", table))
    assert len(found) == 5_000
    assert found[-1].values == {"id": 4_999, "id_2": 4_999}


def test_parquet_without_rows_has_no_records(tmp_path: Path) -> None:
    assert records_of(write_parquet(tmp_path / "f.parquet", pa.table({"id": pa.array([], pa.string())}))) == []


def test_parquet_nested_nanoseconds_are_truncated(tmp_path: Path) -> None:
    moment = pa.array([1_001], pa.timestamp("ns"))
    table = pa.table(
        {"id": ["a"], "s": pa.StructArray.from_arrays([moment], ["at"]), "l": pa.ListArray.from_arrays([0, 1], moment)}
    )
    (found,) = records_of(write_parquet(tmp_path / "f.parquet", table))
    assert found.values["s"] == {"at": "1970-01-01T00:00:00.000001"}
    assert found.values["l"] == ["1970-01-01T00:00:00.000001"]


@pytest.mark.parametrize("content", [b"PAR1", b"no parquet at all", b"PAR1" + b"\x00" * 100 + b"PAR1"])
def test_invalid_parquet_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f.parquet").write_bytes(content)
    with pytest.raises(InvalidInput) as caught:
        describe(tmp_path / "f.parquet")
    assert caught.value.field == "input"


def test_parquet_date_out_of_python_range_is_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "f.parquet", pa.table({"day": pa.array([10_000_000], pa.date32())}))
    with pytest.raises(InvalidInput, match="Parquet"):
        list(read(describe(path)))


def test_parquet_row_larger_than_a_message_is_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "f.parquet", pa.table({"id": ["a", "b" * 2_000]}))
    with pytest.raises(InvalidInput, match="record 2"):
        list(read(describe(path, max_body_bytes=1_000)))
