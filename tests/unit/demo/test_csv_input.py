"""Test the demo's CSV reader: records, their bodies, and the detection of dirty records."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raymq.demo.demo_input import describe
from raymq.demo.dirty_rule import parse_json
from raymq.demo.input_plan import unique_names
from raymq.storage.errors import InvalidInput
from tests.demo_records import records_of


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


def test_csv_with_only_a_header_has_no_records(csv_file: Any) -> None:
    assert records_of(csv_file("id,n\n")) == []


def test_csv_wrong_field_count_is_dirty_and_keeps_raw_text(csv_file: Any) -> None:
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


def test_csv_text_in_a_number_column_is_dirty(csv_file: Any) -> None:
    lines = [f"k{number},{number},{number}.5" for number in range(98)]
    path = csv_file("key,whole,real\n" + "\n".join([*lines, "k98,NA,1", "k99,7.5,oops", "k100,,"]))
    plan = describe(path)
    assert plan.types == {"key": "text", "whole": "float", "real": "float"}
    found = records_of(path)
    assert [each.reason for each in found if each.dirty] == ['whole: "NA" is no float', 'real: "oops" is no float']
    assert found[98].values["whole"] == "NA"
    assert found[100].values == {"key": "k100", "whole": None, "real": None}


def test_csv_fraction_in_an_int_column_is_dirty(csv_file: Any) -> None:
    path = csv_file("key,n\n" + "".join(f"k{number},{number}\n" for number in range(1_000)) + "k,1.0\nk,1e5\nk, 12 \n")
    found = records_of(path)
    assert describe(path).types["n"] == "int"
    assert [each.reason for each in found[1_000:]] == ['n: "1.0" is no int', 'n: "1e5" is no int', None]


def test_csv_types_come_from_the_first_1000_non_empty_values(csv_file: Any) -> None:
    head = "".join(f"k{number},\n" for number in range(500))
    numbers = "".join(f"k{number},{number}\n" for number in range(1_000))
    words = "".join(f"k{number},word\n" for number in range(2_000))
    assert describe(csv_file("key,n\n" + head + numbers + words)).types["n"] == "int"


@pytest.mark.parametrize(("words", "expected"), [(0, "int"), (50, "int"), (51, "text"), (1_000, "text")])
def test_csv_number_column_has_95_percent_numbers(csv_file: Any, words: int, expected: str) -> None:
    values = ["x"] * words + ["1"] * (1_000 - words)
    assert describe(csv_file("key,n\n" + "".join(f"k,{value}\n" for value in values))).types["n"] == expected


def test_csv_empty_column_is_text(csv_file: Any) -> None:
    assert describe(csv_file("key,n\nk,\nk,\n")).types["n"] == "text"


def test_csv_empty_key_is_dirty(csv_file: Any) -> None:
    found = records_of(csv_file('key,n\n,1\n"",2\n ,3\nk,4\n'))
    assert [each.reason for each in found] == ["key: the key is empty", "key: the key is empty", None, None]


def test_csv_non_json_numbers_stay_text_and_clean(csv_file: Any) -> None:
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


def test_csv_field_may_exceed_the_csv_module_limit(csv_file: Any) -> None:
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
def test_csv_record_larger_than_a_message_is_refused(csv_file: Any, text: str) -> None:
    path = csv_file(text.replace("{big}", "x" * 1_100))
    with pytest.raises(InvalidInput) as caught:
        describe(path, max_body_bytes=1_000)
    assert caught.value.field == "input"
    assert "1000 bytes" in str(caught.value)


def test_csv_record_that_grows_in_json_is_refused(csv_file: Any) -> None:
    text = "key,text\n1," + "\x01" * 200 + "\n"
    with pytest.raises(InvalidInput, match="record 1"):
        describe(csv_file(text), max_body_bytes=1_000)
    assert describe(csv_file(text), max_body_bytes=1_300).rows == 1


@given(
    st.lists(st.lists(st.text(max_size=6), min_size=1, max_size=4), min_size=1, max_size=12),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_csv_reader_agrees_with_the_csv_module(
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
def test_csv_any_text_has_dirty_records_where_fields_mismatch(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("csv") / "input.csv"
    path.write_text("a,b\n" + text, encoding="utf-8", newline="")
    expected = [row for row in csv.reader(io.StringIO("a,b\n" + text, newline="")) if row][1:]
    found = records_of(path)
    assert len(found) == len(expected)
    assert [each.reason is not None and each.reason.startswith("has ") for each in found] == [
        len(row) != 2 for row in expected
    ]
