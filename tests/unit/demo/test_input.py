"""The demo's readers: every record is found, becomes the body it should, and is judged as its body is."""

from __future__ import annotations

import csv
import datetime as dt
import decimal
import io
import json
import math
import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raymq.demo import jsonl_input
from raymq.demo.input import (
    InputRecord,
    bundled_flights,
    describe,
    input_key,
    message_key,
    read,
)
from raymq.demo.plan import MAX_KEY_BYTES, unique_names
from raymq.demo.rule import DirtyRule, Format, converts, parse_json, text_type
from raymq.storage.errors import InvalidInput

FORMATS: tuple[Format, ...] = ("csv", "jsonl", "parquet")


def records_of(path: Path, key: str | None = None) -> list[InputRecord]:
    """All records; checks what must hold for any file: numbering, and that a listener judges as the reader did."""
    plan = describe(path, key)
    found = list(read(plan))
    rule = pickle.loads(pickle.dumps(plan.rule))
    assert len(found) == plan.rows
    assert [each.number for each in found] == list(range(1, len(found) + 1))
    for each in found:
        assert rule.reason(each.body) == each.reason
        assert each.dirty == (each.reason is not None)
        assert each.body
    return found


@pytest.fixture
def csv_file(tmp_path: Path) -> Any:
    def write(text: str | bytes, name: str = "input.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


jsonl_file = csv_file


# CSV


def test_csv_record_is_a_json_object_with_typed_numbers(csv_file: Any) -> None:
    path = csv_file("id,count,price,name\na1,5,1.50,Ann\nb2,-7,2e3,\n")
    plan = describe(path)
    assert plan.types == {"id": "text", "count": "int", "price": "float", "name": "text"}
    assert (plan.rows, plan.columns, plan.key) == (2, ("id", "count", "price", "name"), "id")
    first, second = records_of(path)
    assert first.body == b'{"id": "a1", "count": 5, "price": 1.50, "name": "Ann"}'
    assert second.values == {"id": "b2", "count": -7, "price": 2000.0, "name": ""}
    assert not first.dirty
    assert not second.dirty


def test_csv_quotes_line_ends_and_byte_order_mark(csv_file: Any) -> None:
    path = csv_file(b'\xef\xbb\xbfid,text\r\n1,"two\r\nlines, and a ""quote"""\r\n2,5" pipe\n3,"a"b\r4,x')
    found = records_of(path)
    assert [each.values["text"] for each in found] == ['two\r\nlines, and a "quote"', '5" pipe', "ab", "x"]
    assert [each.key for each in found] == ["1", "2", "3", "4"]


def test_csv_blank_lines_are_no_records(csv_file: Any) -> None:
    assert len(records_of(csv_file("\n\nid,n\n\n1,2\n\r\n3,4\n\n"))) == 2


def test_csv_with_a_header_only_has_no_records(csv_file: Any) -> None:
    assert records_of(csv_file("id,n\n")) == []


def test_csv_another_number_of_fields_is_dirty_and_keeps_its_raw_text(csv_file: Any) -> None:
    found = records_of(csv_file('id,a,b\n1,2\n"x,y",2,3,"4\n5"\n7,8,9\n'), key="a")
    assert [each.body for each in found] == [b"1,2", b'"x,y",2,3,"4\n5"', b'{"id": 7, "a": 8, "b": 9}']
    assert [each.reason for each in found] == ["has 2 fields, the header has 3", "has 4 fields, the header has 3", None]
    assert [each.key for each in found] == ["2", "2", "8"]
    assert found[0].values == {}


@pytest.mark.parametrize("line", ['{"a":[1,2],"b":3}', '["a","b",3]', "[1]", '"{""a"":1,""b"":2}"'])
def test_csv_raw_text_is_never_taken_for_an_object(csv_file: Any, line: str) -> None:
    (found,) = records_of(csv_file(f"a,b\n{line}\n"))
    assert found.dirty
    assert not isinstance(parse_json(found.body.decode()), dict)


def test_csv_a_value_that_is_no_number_is_dirty(csv_file: Any) -> None:
    lines = [f"k{number},{number},{number}.5" for number in range(98)]
    path = csv_file("key,whole,real\n" + "\n".join([*lines, "k98,NA,1", "k99,7.5,oops", "k100,,"]))
    plan = describe(path)
    assert plan.types == {"key": "text", "whole": "float", "real": "float"}
    found = records_of(path)
    assert [each.reason for each in found if each.dirty] == ['whole: "NA" is no float', 'real: "oops" is no float']
    assert found[98].values["whole"] == "NA"
    assert found[100].values == {"key": "k100", "whole": None, "real": None}


def test_csv_a_fraction_in_an_int_column_is_dirty(csv_file: Any) -> None:
    path = csv_file("key,n\n" + "".join(f"k{number},{number}\n" for number in range(1_000)) + "k,1.0\nk,1e5\nk, 12 \n")
    found = records_of(path)
    assert describe(path).types["n"] == "int"
    assert [each.reason for each in found[1_000:]] == ['n: "1.0" is no int', 'n: "1e5" is no int', None]


def test_csv_types_come_of_the_first_1000_values_that_are_not_empty(csv_file: Any) -> None:
    head = "".join(f"k{number},\n" for number in range(500))
    numbers = "".join(f"k{number},{number}\n" for number in range(1_000))
    words = "".join(f"k{number},word\n" for number in range(2_000))
    assert describe(csv_file("key,n\n" + head + numbers + words)).types["n"] == "int"


@pytest.mark.parametrize(("words", "expected"), [(0, "int"), (50, "int"), (51, "text"), (1_000, "text")])
def test_csv_a_number_column_has_95_percent_numbers(csv_file: Any, words: int, expected: str) -> None:
    values = ["x"] * words + ["1"] * (1_000 - words)
    assert describe(csv_file("key,n\n" + "".join(f"k,{value}\n" for value in values))).types["n"] == expected


def test_csv_an_empty_column_is_text(csv_file: Any) -> None:
    assert describe(csv_file("key,n\nk,\nk,\n")).types["n"] == "text"


def test_csv_empty_key_is_dirty(csv_file: Any) -> None:
    found = records_of(csv_file('key,n\n,1\n"",2\n ,3\nk,4\n'))
    assert [each.reason for each in found] == ["key: the key is empty", "key: the key is empty", None, None]


def test_csv_what_is_no_json_number_stays_text_and_clean(csv_file: Any) -> None:
    texts = ["007", "+5", " 12 ", "99999999999999999999", "-9223372036854775808", "9223372036854775808", "-0", "0"]
    found = records_of(csv_file("key,n\n" + "".join(f"k,{text}\n" for text in texts)))
    assert not any(each.dirty for each in found)
    assert [each.values["n"] for each in found] == [
        "007", "+5", " 12 ", "99999999999999999999", -9223372036854775808, "9223372036854775808", 0, 0,
    ]  # fmt: skip


def test_csv_header_names_are_made_unique(csv_file: Any) -> None:
    (found,) = records_of(csv_file("a,,a,a_3,\n1,2,3,4,5\n"))
    assert found.values == {"a": 1, "column_2": 2, "a_3_3": 3, "a_3": 4, "column_5": 5}
    assert unique_names(["x", "x", "x"]) == ("x", "x_2", "x_3")


def test_csv_a_field_longer_than_the_csv_modules_limit(csv_file: Any) -> None:
    path = csv_file(f'key,text\n1,{"x" * 300_000}\n2,"{"y" * 300_000}",3\n')
    before = csv.field_size_limit(131_072)
    try:
        found = records_of(path)
    finally:
        csv.field_size_limit(before)
    assert [each.dirty for each in found] == [False, True]


@pytest.mark.parametrize(
    "text",
    ["key,text\n1,{big}\n", '1,"{big}\n', "key,text\n1,{big},\n", 'key,text\n1,"a\n{big}\nb\n'],
    ids=["line", "quote-in-header", "wrong-count", "quote"],
)
def test_csv_a_record_larger_than_a_message_is_refused_before_anything_is_read(csv_file: Any, text: str) -> None:
    path = csv_file(text.replace("{big}", "x" * 1_100))
    with pytest.raises(InvalidInput) as caught:
        describe(path, max_body_bytes=1_000)
    assert caught.value.field == "input"
    assert "1000 bytes" in str(caught.value)


def test_csv_a_record_that_grows_in_json_is_refused_by_describe(csv_file: Any) -> None:
    text = "key,text\n1," + "\x01" * 200 + "\n"
    with pytest.raises(InvalidInput, match="record 1"):
        describe(csv_file(text), max_body_bytes=1_000)
    assert describe(csv_file(text), max_body_bytes=1_300).rows == 1


@given(
    st.lists(st.lists(st.text(max_size=6), min_size=1, max_size=4), min_size=1, max_size=12),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_csv_reads_what_pythons_csv_reads_and_judges_as_the_body_is(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], line_end: str, quoting: int
) -> None:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator=line_end, quoting=quoting).writerows([["key", "n"], *rows])
    text = buffer.getvalue()
    path = tmp_path_factory.mktemp("csv") / "input.csv"
    path.write_text(text, encoding="utf-8", newline="")
    expected = [row for row in csv.reader(io.StringIO(text, newline="")) if row][1:]
    types = describe(path).types
    for record, row in zip(records_of(path), expected, strict=True):
        assert record.key == row[0]
        if len(row) != 2:
            assert record.dirty
            continue
        assert record.values == json.loads(record.body)
        for (name, value), field in zip(record.values.items(), row, strict=True):
            assert value == field or (types[name] != "text" and (value == float(field) if field else value is None))


@given(st.text(alphabet=st.sampled_from("ab1.-,\"'{}[]:\n\r \\eE+_\u00e9\x00\ufeff"), max_size=60))
def test_csv_any_text_is_judged_as_its_bodies_are(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("csv") / "input.csv"
    path.write_text("a,b\n" + text, encoding="utf-8", newline="")
    expected = [row for row in csv.reader(io.StringIO("a,b\n" + text, newline="")) if row][1:]
    found = records_of(path)
    assert len(found) == len(expected)
    assert [each.reason is not None and each.reason.startswith("has ") for each in found] == [
        len(row) != 2 for row in expected
    ]


# JSONL


def test_jsonl_the_line_is_the_body(jsonl_file: Any) -> None:
    path = jsonl_file(
        '\ufeff{"id": "a", "n": 1.10, "x": {"y": [1]}}\n\n  {"id":"b","n":2}\t\r\n{"n": null, "id": "c"}', "f.jsonl"
    )
    found = records_of(path)
    assert [each.body for each in found] == [
        b'{"id": "a", "n": 1.10, "x": {"y": [1]}}', b'{"id":"b","n":2}', b'{"n": null, "id": "c"}',
    ]  # fmt: skip
    assert [each.key for each in found] == ["a", "b", "c"]
    assert describe(path).types == {"id": "text", "n": "float", "x": "text"}
    assert not any(each.dirty for each in found)


@pytest.mark.parametrize(
    "line",
    ["[1]", "7", "null", "nope", '{"id": "a"', '{"id": NaN}', '{"id": "a", "n": -Infinity}', "{'id': 1}", '"{}"',
     '{"id":' + "[" * 250 + "]" * 250 + "}", "[" * 100_000],
)  # fmt: skip
def test_jsonl_what_is_no_object_is_dirty(jsonl_file: Any, line: str) -> None:
    found = records_of(jsonl_file(f'{{"id": "a"}}\n{line}\n', "f.jsonl"))
    assert [each.reason for each in found] == [None, "is no JSON object"]
    assert found[1].body == line.encode()
    assert found[1].key == ""


@pytest.mark.parametrize("line", ["{}", '{"n": 1}', '{"id": null}', '{"id": ""}'])
def test_jsonl_a_missing_or_empty_key_is_dirty(jsonl_file: Any, line: str) -> None:
    found = records_of(jsonl_file(f'{{"id": "a", "n": 1}}\n{line}\n', "f.jsonl"))
    assert [each.reason for each in found] == [None, "id: the key is empty"]


@pytest.mark.parametrize(
    ("value", "clean"),
    [("5", True), ("5.0", True), ("5.5", False), ('"5"', True), ('" 5 "', True), ('"5.0"', False), ('"x"', False),
     ("true", False), ("[5]", False), ("{}", False), ("null", True), ('""', True), ("1" + "0" * 5_000, True),
     ("1e999", False), ("1e3", True)],
)  # fmt: skip
def test_jsonl_values_in_an_int_column(jsonl_file: Any, value: str, clean: bool) -> None:
    head = "".join(f'{{"id": "a", "n": {number}}}\n' for number in range(1_000))
    path = jsonl_file(head + f'{{"id": "b", "n": {value}}}\n', "f.jsonl")
    assert describe(path).types["n"] == "int"
    assert records_of(path)[-1].dirty != clean


def test_jsonl_digits_in_strings_and_booleans_make_no_number_column(jsonl_file: Any) -> None:
    path = jsonl_file('{"id": "007", "flag": true}\n{"id": "A8", "flag": "no"}\n', "f.jsonl")
    assert set(describe(path).types.values()) == {"text"}
    assert not any(each.dirty for each in records_of(path))


@pytest.mark.parametrize(
    ("value", "key"), [("17", "17"), ("1.5", "1.5"), ("true", "true"), ('["a b"]', '["a b"]'), ('"ü"', "ü")]
)
def test_jsonl_keys_of_any_type_become_text(jsonl_file: Any, value: str, key: str) -> None:
    (found,) = records_of(jsonl_file(f'{{"id": {value}}}\n', "f.jsonl"))
    assert found.key == key


def test_jsonl_the_key_column_may_come_late_and_repeat(jsonl_file: Any) -> None:
    path = jsonl_file('x\n{}\n{"a": 1}\n{"b": 2, "a": 1}\n', "f.jsonl")
    assert describe(path).key == "a"
    assert [each.key for each in records_of(path, key="b")] == ["", "", "", "2"]


def test_jsonl_without_an_object_is_dirty_throughout(jsonl_file: Any) -> None:
    path = jsonl_file("one\ntwo\n", "f.jsonl")
    assert [each.reason for each in records_of(path)] == ["is no JSON object"] * 2
    with pytest.raises(InvalidInput):
        describe(path, "id")


def test_jsonl_names_that_are_data_do_not_fill_the_memory(jsonl_file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl_input, "MAX_COLUMNS", 3)
    path = jsonl_file("".join(f'{{"name{number}": {number}}}\n' for number in range(10)), "f.jsonl")
    assert len(describe(path).columns) == 3
    assert describe(path, "name7").key == "name7"


def test_jsonl_a_line_larger_than_a_message_is_refused(jsonl_file: Any) -> None:
    path = jsonl_file('{"id": 1}\n{"id": "' + " " * 2_000 + '"}\n', "f.jsonl")
    with pytest.raises(InvalidInput, match="record 2"):
        describe(path, max_body_bytes=1_000)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["12", " 7", "1_0", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), JSON_VALUES, max_size=3) | JSON_VALUES, min_size=1, max_size=10)
)
def test_jsonl_any_values_are_judged_as_their_bodies_are(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any]
) -> None:
    path = tmp_path_factory.mktemp("jsonl") / "input.jsonl"
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    found = records_of(path)
    assert len(found) == len(values)
    for record, value in zip(found, values, strict=True):
        if not isinstance(value, dict):
            assert record.dirty


# Parquet


def write_parquet(path: Path, table: pa.Table) -> Path:
    pq.write_table(table, path)
    return path


def test_parquet_rows_are_clean_by_their_types(tmp_path: Path) -> None:
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


def test_parquet_an_empty_key_is_dirty(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "f.parquet", pa.table({"n": [1, 2, 3], "id": ["a", None, ""]}))
    assert [each.dirty for each in records_of(path, "id")] == [False, True, True]
    assert [each.key for each in records_of(path)] == ["1", "2", "3"]


def test_parquet_many_batches_and_repeated_names(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(range(5_000)), pa.array(range(5_000))], names=["id", "id"])
    found = records_of(write_parquet(tmp_path / "f.parquet", table))
    assert len(found) == 5_000
    assert found[-1].values == {"id": 4_999, "id_2": 4_999}


def test_parquet_without_rows_has_no_records(tmp_path: Path) -> None:
    assert records_of(write_parquet(tmp_path / "f.parquet", pa.table({"id": pa.array([], pa.string())}))) == []


def test_parquet_nanoseconds_within_structs_and_lists(tmp_path: Path) -> None:
    moment = pa.array([1_001], pa.timestamp("ns"))
    table = pa.table(
        {"id": ["a"], "s": pa.StructArray.from_arrays([moment], ["at"]), "l": pa.ListArray.from_arrays([0, 1], moment)}
    )
    (found,) = records_of(write_parquet(tmp_path / "f.parquet", table))
    assert found.values["s"] == {"at": "1970-01-01T00:00:00.000001"}
    assert found.values["l"] == ["1970-01-01T00:00:00.000001"]


@pytest.mark.parametrize("content", [b"PAR1", b"no parquet at all", b"PAR1" + b"\x00" * 100 + b"PAR1"])
def test_parquet_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f.parquet").write_bytes(content)
    with pytest.raises(InvalidInput) as caught:
        describe(tmp_path / "f.parquet")
    assert caught.value.field == "input"


def test_parquet_a_date_that_python_has_not_is_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "f.parquet", pa.table({"day": pa.array([10_000_000], pa.date32())}))
    with pytest.raises(InvalidInput, match="Parquet"):
        list(read(describe(path)))


def test_parquet_a_row_larger_than_a_message_is_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "f.parquet", pa.table({"id": ["a", "b" * 2_000]}))
    with pytest.raises(InvalidInput, match="record 2"):
        list(read(describe(path, max_body_bytes=1_000)))


# Files and keys


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [("a.CSV", b"a,b\n", "csv"), ("a.ndjson", b"a,b\n", "jsonl"), ("a", b'\xef\xbb\xbf \n{"a": 1}', "jsonl"),
     ("a.txt", b"a,b\n", "csv"), ("a.json", b"[1]", "jsonl"), ("a.csv", b'{"a": 1}', "csv")],
)  # fmt: skip
def test_the_format_is_told_by_suffix_else_by_content(csv_file: Any, name: str, content: bytes, expected: str) -> None:
    assert describe(csv_file(content, name)).format == expected


def test_parquet_is_known_by_its_content(tmp_path: Path) -> None:
    assert describe(write_parquet(tmp_path / "data", pa.table({"id": [1]}))).format == "parquet"


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet", "a"])
def test_files_that_are_missing_empty_or_folders_are_refused(tmp_path: Path, name: str) -> None:
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
def test_files_with_blank_lines_only_are_empty(csv_file: Any, name: str, content: bytes) -> None:
    with pytest.raises(InvalidInput, match="not empty"):
        describe(csv_file(content, name))


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize("content", ["a,b\n1,é\n".encode("latin-1"), "a,b\n".encode("utf-16")])
def test_text_that_is_no_utf8_is_refused(csv_file: Any, name: str, content: bytes) -> None:
    with pytest.raises(InvalidInput, match="UTF-8"):
        describe(csv_file(content, name))


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(InvalidInput, match="regular file"):
        describe(tmp_path / "pipe.csv")


@pytest.mark.parametrize("text", ["id,n\n1,2\n", '{"id": 1, "n": 2}\n'])
def test_an_unknown_key_column_is_refused_and_the_columns_are_named(csv_file: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match="id, n") as caught:
        describe(csv_file(text, "input"), "ID")
    assert (caught.value.field, caught.value.actual) == ("key", "ID")


@pytest.mark.parametrize("text", ["id\n{}\n", '{{"id": "{}"}}\n'])
def test_a_key_that_is_too_long_for_a_message_is_refused(csv_file: Any, text: str) -> None:
    assert describe(csv_file(text.format("k" * MAX_KEY_BYTES), "input")).rows == 1
    with pytest.raises(InvalidInput, match="record 1"):
        describe(csv_file(text.format("k" * (MAX_KEY_BYTES + 1)), "input"))


@given(st.text())
def test_message_keys_turn_back(key: str) -> None:
    made = message_key(key)
    assert input_key(made) == key
    assert not any(character.isspace() or character in "\x00\x01\x02" for character in made)
    made.encode("utf-8")


def test_message_keys_that_need_nothing_stay() -> None:
    assert message_key("UA1545-20130101-EWR") == "UA1545-20130101-EWR"
    assert message_key("New York 100%") == "New%20York%20100%25"
    assert input_key(message_key("\ud800")) == "\ud800"


@pytest.mark.parametrize("name", ["f.csv", "f.jsonl"])
def test_the_file_is_not_held_in_memory(tmp_path: Path, name: str) -> None:
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


# The rule


@pytest.mark.parametrize("text", ["0", "-1", "+12", " 12 ", "007", "9" * 30, "9" * 5_000])
def test_ints(text: str) -> None:
    assert text_type(text) == "int"


@pytest.mark.parametrize("text", ["1.5", "1.", ".5", "-1e5", "1E-5", "1e308", " 1.0\t"])
def test_floats(text: str) -> None:
    assert text_type(text) == "float"


@pytest.mark.parametrize(
    "text",
    ["NaN", "nan", "inf", "-Infinity", "1_000", "1,000", "0x1F", "1e999", "", " ", ".", "-", "e5", "1e", "1 2",
     "१२", "½", "--1", "NA"],
)  # fmt: skip
def test_no_numbers(text: str) -> None:
    assert text_type(text) == "text"


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_what_python_writes_as_a_number_is_one(value: float) -> None:
    assert converts(repr(value), "float")
    assert converts(repr(value), "int") == isinstance(value, int)


def test_a_number_beyond_a_double_is_an_int_but_no_float() -> None:
    assert converts("9" * 400, "int")
    assert not converts("9" * 400, "float")
    assert not converts(10**400, "float")


def test_the_rule_takes_any_bytes(csv_file: Any) -> None:
    rule = describe(csv_file("a,b\n1,2\n")).rule
    assert rule.reason(b"\xff") == "is no UTF-8 text"
    assert rule.reason(b"") == "has 0 fields, the header has 2"
    assert rule.reason(b"{}") == "a: the key is empty"


@given(st.binary(max_size=30))
def test_the_rule_never_raises(body: bytes) -> None:
    for file_format in FORMATS:
        DirtyRule(file_format, ("a", "b"), (("a", "int"), ("b", "float")), "a").reason(body)


# The data set that comes with RayMQ


def test_the_flights_are_complete_and_dirty_where_r_wrote_na() -> None:
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
