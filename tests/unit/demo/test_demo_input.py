"""Test the demo's input: format detection, keys, the dirty rule, and the bundled data set."""

from __future__ import annotations

import csv
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raymq.demo.demo_input import bundled_flights, describe, input_key, message_key, read
from raymq.demo.dirty_rule import DirtyRule, Format, converts, text_type
from raymq.demo.input_plan import MAX_KEY_BYTES
from raymq.storage.errors import InvalidInput
from tests.demo_records import records_of, write_parquet

FORMATS: tuple[Format, ...] = ("csv", "jsonl", "parquet")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [("a.CSV", b"a,b\n", "csv"), ("a.ndjson", b"a,b\n", "jsonl"), ("a", b'\xef\xbb\xbf \n{"a": 1}', "jsonl"),
     ("a.txt", b"a,b\n", "csv"), ("a.json", b"[1]", "jsonl"), ("a.csv", b'{"a": 1}', "csv")],
)  # fmt: skip
def test_format_is_detected_by_suffix_then_content(csv_file: Any, name: str, content: bytes, expected: str) -> None:
    assert describe(csv_file(content, name)).format == expected


def test_parquet_is_detected_by_content(tmp_path: Path) -> None:
    assert describe(write_parquet(tmp_path / "data", pa.table({"id": [1]}))).format == "parquet"


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet", "a"])
def test_missing_empty_or_folder_input_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(InvalidInput, match="exists") as caught:
        describe(path)
    assert caught.value.field == "input"
    path.touch()
    with pytest.raises(InvalidInput, match="not empty"):
        describe(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(InvalidInput, match="regular file"):
        describe(path)


@pytest.mark.parametrize(
    ("name", "content"), [("a.csv", b"\n\r\n"), ("a.csv", b"\xef\xbb\xbf"), ("a.jsonl", b" \n\t\n")]
)
def test_file_of_blank_lines_counts_as_empty(csv_file: Any, name: str, content: bytes) -> None:
    with pytest.raises(InvalidInput, match="not empty"):
        describe(csv_file(content, name))


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize("content", ["a,b\n1,é\n".encode("latin-1"), "a,b\n".encode("utf-16")])
def test_non_utf8_text_is_refused(csv_file: Any, name: str, content: bytes) -> None:
    with pytest.raises(InvalidInput, match="UTF-8"):
        describe(csv_file(content, name))


def test_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(InvalidInput, match="regular file"):
        describe(tmp_path / "pipe.csv")


@pytest.mark.parametrize("text", ["id,n\n1,2\n", '{"id": 1, "n": 2}\n'])
def test_unknown_key_column_error_lists_the_columns(csv_file: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match="id, n") as caught:
        describe(csv_file(text, "input"), "ID")
    assert (caught.value.field, caught.value.actual) == ("key", "ID")


@pytest.mark.parametrize("text", ["id\n{}\n", '{{"id": "{}"}}\n'])
def test_too_long_key_is_refused(csv_file: Any, text: str) -> None:
    assert describe(csv_file(text.format("k" * MAX_KEY_BYTES), "input")).rows == 1
    with pytest.raises(InvalidInput, match="record 1"):
        describe(csv_file(text.format("k" * (MAX_KEY_BYTES + 1)), "input"))


@given(st.text())
def test_message_key_converts_back(key: str) -> None:
    made = message_key(key)
    assert input_key(made) == key
    assert not any(character.isspace() or character in "\x00\x01\x02" for character in made)
    made.encode("utf-8")


def test_plain_message_key_stays_unchanged() -> None:
    assert message_key("UA1545-20130101-EWR") == "UA1545-20130101-EWR"
    assert message_key("New York 100%") == "New%20York%20100%25"
    assert input_key(message_key("\ud800")) == "\ud800"


@pytest.mark.parametrize("name", ["f.csv", "f.jsonl"])
def test_input_file_is_not_held_in_memory(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    filling = "x" * 1_000
    with path.open("w", encoding="utf-8") as file:
        if name.endswith("csv"):
            file.write("id,text\n")
            file.writelines(f'{number},"{filling}"\n' for number in range(5_000))
        else:
            file.writelines(f'{{"id": {number}, "text": "{filling}"}}\n' for number in range(5_000))
    tracemalloc.start()
    try:
        assert sum(1 for _ in read(describe(path))) == 5_000
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1_000_000 < path.stat().st_size


@pytest.mark.parametrize("text", ["0", "-1", "+12", " 12 ", "007", "9" * 30, "9" * 5_000])
def test_integer_texts_have_type_int(text: str) -> None:
    assert text_type(text) == "int"


@pytest.mark.parametrize("text", ["1.5", "1.", ".5", "-1e5", "1E-5", "1e308", " 1.0\t"])
def test_decimal_texts_have_type_float(text: str) -> None:
    assert text_type(text) == "float"


@pytest.mark.parametrize(
    "text",
    ["NaN", "nan", "inf", "-Infinity", "1_000", "1,000", "0x1F", "1e999", "", " ", ".", "-", "e5", "1e", "1 2",
     "१२", "½", "--1", "NA"],
)  # fmt: skip
def test_other_texts_have_type_text(text: str) -> None:
    assert text_type(text) == "text"


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_python_number_reprs_are_numbers(value: float) -> None:
    assert converts(repr(value), "float")
    assert converts(repr(value), "int") == isinstance(value, int)


def test_number_beyond_a_double_is_an_int_but_not_a_float() -> None:
    assert converts("9" * 400, "int")
    assert not converts("9" * 400, "float")
    assert not converts(10**400, "float")


def test_dirty_rule_gives_a_reason_for_any_bytes(csv_file: Any) -> None:
    rule = describe(csv_file("a,b\n1,2\n")).rule
    assert rule.reason(b"\xff") == "is no UTF-8 text"
    assert rule.reason(b"") == "has 0 fields, the header has 2"
    assert rule.reason(b"{}") == "a: the key is empty"


@given(st.binary(max_size=30))
def test_dirty_rule_never_raises(body: bytes) -> None:
    for file_format in FORMATS:
        DirtyRule(file_format, ("a", "b"), (("a", "int"), ("b", "float")), "a").reason(body)


def test_bundled_flights_are_complete_and_dirty_where_na() -> None:
    with bundled_flights() as path:
        found = records_of(path)
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    assert len(found) == 12_208
    assert len({each.key for each in found}) == 12_208
    numbers = [name for name in rows[0] if name != "tailnum"]
    assert [each.dirty for each in found] == [any(row[name] == "NA" for name in numbers) for row in rows]
    assert sum(each.dirty for each in found) == 123
    for each, row in zip(found, rows, strict=True):
        assert {name: str(value) for name, value in each.values.items()} == row
        assert (
            message_key(each.key)
            == each.key
            == f"{row['carrier']}{row['flight']}-201301{int(row['day']):02}-{row['origin']}"
        )
