"""Read CSV for `raymq demo`: RFC 4180 in UTF-8 with a header.

It is parsed by Python's csv. Numbers are written into a body with the same digits if they are JSON within 64 bits
(`517`, `-3.50`), else as the original string (`007`, ` 12 `, 20 digits), so that no information is lost; empty values
are null. A record with another number of fields than the header keeps its raw text; if the raw text could be read as a
JSON object or array, the body is the array of its fields.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from raymq.demo.dirty_rule import ColumnType, converts, csv_reader, parse_json, text_type
from raymq.demo.input_plan import (
    InputPlan,
    InputRecord,
    TypeSample,
    check_key,
    empty_file_error,
    encoding_error,
    key_column,
    record_size_error,
    unique_names,
    unreadable_file_error,
)
from raymq.storage.errors import InvalidInput

_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")

_to_json = json.JSONEncoder(ensure_ascii=False).encode


def describe(path: Path, key: str | None, max_body_bytes: int) -> InputPlan:
    """Read the whole file: header, types, number of records.

    Raise InvalidInput as `demo_input.describe`.
    """
    records = _records(path, max_body_bytes)
    header, _ = next(records, (None, ""))
    if header is None:
        raise empty_file_error(path)
    columns = unique_names(header)
    key = key_column(key, columns)
    key_index = columns.index(key)
    samples = [TypeSample() for _ in columns]
    growing = list(enumerate(samples))
    members = _MemberNames(columns)
    rows = 0
    for fields, raw in records:
        rows += 1
        if key_index < len(fields):
            check_key(fields[key_index], rows)
        if len(raw) * 6 + members.overhead_bytes > max_body_bytes:  # JSON needs up to 6 bytes per character: \u0001.
            whole = len(fields) == len(columns)
            text = _object(members, ["text"] * len(columns), fields)[0] if whole else _raw_text(raw, fields)
            if len(text.encode()) > max_body_bytes:
                raise record_size_error(rows, max_body_bytes)
        if growing and len(fields) == len(columns):
            for index, sample in growing:
                if fields[index]:
                    sample.add(text_type(fields[index]))
            if rows % 100 == 0:
                growing = [each for each in growing if not each[1].full]
    types = {name: sample.column_type() for name, sample in zip(columns, samples, strict=True)}
    return InputPlan(path, "csv", rows, columns, types, key, max_body_bytes)


def read(plan: InputPlan) -> Iterator[InputRecord]:
    """Yield the records in order."""
    rule = plan.rule
    members = _MemberNames(plan.columns)
    types = [plan.types[name] for name in plan.columns]
    key_index = plan.columns.index(plan.key)
    records = _records(plan.path, plan.max_body_bytes)
    next(records, None)
    for number, (fields, raw) in enumerate(records, start=1):
        key = fields[key_index] if key_index < len(fields) else ""
        if len(fields) == len(plan.columns):
            text, row = _object(members, types, fields)
            values = dict(zip(plan.columns, row, strict=True))
            yield plan.record(number, key, text, rule.reason_of(values), values)
        else:
            yield plan.record(number, key, _raw_text(raw, fields), rule.reason_of_count(len(fields)), {})


class _MemberNames(list[str]):
    """The columns' names in the form for JSON objects.

    `overhead_bytes` is the size of an object without its values.
    """

    def __init__(self, columns: tuple[str, ...]) -> None:
        super().__init__(f"{_to_json(name)}: " for name in columns)
        self.overhead_bytes = 2 + sum(len(name.encode()) + len('"", ') for name in self)


def _records(path: Path, max_body_bytes: int) -> Iterator[tuple[list[str], str]]:
    """Yield each record's fields and raw text without its line end, the header first.

    Blank lines are skipped.
    """
    used: list[str] = []
    number = 0

    def lines(file: IO[str]) -> Iterator[str]:
        length = 0
        while line := file.readline(max_body_bytes + 3):
            length = length + len(line) if used else len(line)
            if length > max_body_bytes + 2:  # A line end is not part of the body.
                raise record_size_error(number, max_body_bytes)
            used.append(line)
            yield line

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for fields in csv_reader(lines(file)):
                if fields:
                    yield fields, "".join(used).removesuffix("\n").removesuffix("\r")
                    number += 1
                used.clear()
    except UnicodeDecodeError as error:
        raise encoding_error(path, error) from error
    except csv.Error as error:
        raise InvalidInput("input", "CSV as in RFC 4180", f"{path}, record {number}: {error}") from error
    except OSError as error:
        raise unreadable_file_error(path, error) from error


def _object(members: list[str], types: list[ColumnType], fields: list[str]) -> tuple[str, list[Any]]:
    """Return a record's JSON object as text, and its values in column order."""
    texts: list[str] = []
    values: list[Any] = []
    for member, column_type, text in zip(members, types, fields, strict=True):
        if column_type == "text":
            texts.append(member + _to_json(text))
            values.append(text)
        elif not text:
            texts.append(member + "null")
            values.append(None)
        elif _JSON_NUMBER.fullmatch(text) and converts(text, column_type) and _within_64_bits(text):
            texts.append(member + text)
            values.append(int(text) if text_type(text) == "int" else float(text))
        else:
            texts.append(member + _to_json(text))
            values.append(text)
    return "{" + ", ".join(texts) + "}", values


def _within_64_bits(text: str) -> bool:
    """Return True if a JSON number is a float, or a signed 64 bit integer."""
    if len(text) <= 18 or text_type(text) == "float":
        return True
    return len(text) <= 20 and -(1 << 63) <= int(text) < 1 << 63


def _raw_text(raw: str, fields: list[str]) -> str:
    return _to_json(fields) if isinstance(parse_json(raw), dict | list) else raw
