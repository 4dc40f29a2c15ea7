"""Test the demo's JSON lines reader: bodies, keys, types and dirty lines."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raymq.demo import jsonl_input
from raymq.demo.demo_input import describe
from raymq.storage.errors import InvalidInput
from tests.demo_records import records_of


def test_jsonl_line_is_the_body(csv_file: Any) -> None:
    path = csv_file(
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
def test_jsonl_non_object_is_dirty(csv_file: Any, line: str) -> None:
    found = records_of(csv_file(f'{{"id": "a"}}\n{line}\n', "f.jsonl"))
    assert [each.reason for each in found] == [None, "is no JSON object"]
    assert found[1].body == line.encode()
    assert found[1].key == ""


@pytest.mark.parametrize("line", ["{}", '{"n": 1}', '{"id": null}', '{"id": ""}'])
def test_jsonl_missing_or_empty_key_is_dirty(csv_file: Any, line: str) -> None:
    found = records_of(csv_file(f'{{"id": "a", "n": 1}}\n{line}\n', "f.jsonl"))
    assert [each.reason for each in found] == [None, "id: the key is empty"]


@pytest.mark.parametrize(
    ("value", "clean"),
    [("5", True), ("5.0", True), ("5.5", False), ('"5"', True), ('" 5 "', True), ('"5.0"', False), ('"x"', False),
     ("true", False), ("[5]", False), ("{}", False), ("null", True), ('""', True), ("1" + "0" * 5_000, True),
     ("1e999", False), ("1e3", True)],
)  # fmt: skip
def test_jsonl_int_column_accepts_only_integers(csv_file: Any, value: str, clean: bool) -> None:
    head = "".join(f'{{"id": "a", "n": {number}}}\n' for number in range(1_000))
    path = csv_file(head + f'{{"id": "b", "n": {value}}}\n', "f.jsonl")
    assert describe(path).types["n"] == "int"
    assert records_of(path)[-1].dirty != clean


def test_jsonl_digit_strings_and_booleans_are_text_columns(csv_file: Any) -> None:
    path = csv_file('{"id": "007", "flag": true}\n{"id": "A8", "flag": "no"}\n', "f.jsonl")
    assert set(describe(path).types.values()) == {"text"}
    assert not any(each.dirty for each in records_of(path))


@pytest.mark.parametrize(
    ("value", "key"), [("17", "17"), ("1.5", "1.5"), ("true", "true"), ('["a b"]', '["a b"]'), ('"ü"', "ü")]
)
def test_jsonl_keys_of_any_type_become_text(csv_file: Any, value: str, key: str) -> None:
    (found,) = records_of(csv_file(f'{{"id": {value}}}\n', "f.jsonl"))
    assert found.key == key


def test_jsonl_key_column_may_appear_late(csv_file: Any) -> None:
    path = csv_file('x\n{}\n{"a": 1}\n{"b": 2, "a": 1}\n', "f.jsonl")
    assert describe(path).key == "a"
    assert [each.key for each in records_of(path, key="b")] == ["", "", "", "2"]


def test_jsonl_without_any_object_has_only_dirty_records(csv_file: Any) -> None:
    path = csv_file("one\ntwo\n", "f.jsonl")
    assert [each.reason for each in records_of(path)] == ["is no JSON object"] * 2
    with pytest.raises(InvalidInput):
        describe(path, "id")


def test_jsonl_number_of_known_columns_is_bounded(csv_file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl_input, "MAX_COLUMNS", 3)
    path = csv_file("".join(f'{{"name{number}": {number}}}\n' for number in range(10)), "f.jsonl")
    assert len(describe(path).columns) == 3
    assert describe(path, "name7").key == "name7"


def test_jsonl_line_larger_than_a_message_is_refused(csv_file: Any) -> None:
    path = csv_file('{"id": 1}\n{"id": "' + " " * 2_000 + '"}\n', "f.jsonl")
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
def test_jsonl_any_non_object_value_is_dirty(tmp_path_factory: pytest.TempPathFactory, values: list[Any]) -> None:
    path = tmp_path_factory.mktemp("jsonl") / "input.jsonl"
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    found = records_of(path)
    assert len(found) == len(values)
    for record, value in zip(found, values, strict=True):
        if not isinstance(value, dict):
            assert record.dirty
