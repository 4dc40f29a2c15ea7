"""Determine from a message's body alone whether a record of `raymq demo` is dirty.

A record is dirty if it has another number of fields than the header (JSONL: is not a JSON object), its key is empty, or
a value that is not empty does not convert to its column's type. The reader (demo_input.py) and a consumer's listener in
another process must agree on every record, so both use this module.

- Empty is null, "" and an absent name.
- A number in text is ASCII digits with sign, point and exponent, blanks around it allowed: `12`, ` +12 `, `.5`, `1e5`.
  Not numbers are `1_000`, `1,000`, `0x1F`, `NaN`, `inf` and `1e999` (beyond a double).
- An int has neither point nor exponent and may have any size; JSON's 3.0 is an int too. `true` is not a number.
- NaN and Infinity are not JSON, and values that nest deeper than 200 levels are treated as if they were not.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

__all__ = ["ColumnType", "DirtyRule", "Format", "converts", "csv_reader", "is_empty", "parse_json", "text_type"]

Format = Literal["csv", "jsonl", "parquet"]
ColumnType = Literal["int", "float", "text"]

#: Far below Python's recursion limit, so that the result does not depend on the caller's stack depth.
MAX_NESTING: Final = 200
#: The longest field that csv accepts here; `InputPlan.max_body_bytes` limits a record for a message.
MAX_FIELD_CHARACTERS: Final = 64 * 1024 * 1024

_BLANKS = " \t\r\n\f\v"
_WHOLE_TEXT = re.compile(r"[+-]?[0-9]+")
_NUMBER_TEXT = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)


@dataclass(frozen=True, slots=True)
class DirtyRule:
    """The rule for dirty messages: `reason(body)` equals the reader's `InputRecord.reason`.

    `numbers` are the number columns with their types; none for Parquet, whose values always have their column's type.
    Picklable, and safe for any thread.
    """

    format: Format
    columns: tuple[str, ...]
    numbers: tuple[tuple[str, ColumnType], ...]
    key: str

    def reason(self, body: bytes) -> str | None:
        """Return why the record with this body is dirty, None if it is clean.

        It accepts any bytes and raises nothing.
        """
        try:
            text = body.decode("utf-8")
        except UnicodeDecodeError:
            return "is no UTF-8 text"
        values = parse_json(text)
        if isinstance(values, dict):
            return self.reason_of(values)
        if self.format != "csv":
            return "is no JSON object"
        return self.reason_of_count(len(values) if isinstance(values, list) else _count_fields(text))

    def reason_of(self, values: dict[str, Any]) -> str | None:
        """Return the same as `reason` for a parsed body."""
        if is_empty(values.get(self.key)):
            return f"{self.key}: the key is empty"
        for name, column_type in self.numbers:
            value = values.get(name)
            if not is_empty(value) and not converts(value, column_type):
                return f"{name}: {_shortened(value)} is no {column_type}"
        return None

    def reason_of_count(self, fields: int) -> str:
        """Return the reason of a CSV record with another number of fields than the header."""
        return f"has {fields} field{'' if fields == 1 else 's'}, the header has {len(self.columns)}"


def is_empty(value: object) -> bool:
    """Return True if a value is missing: null or the empty text."""
    return value is None or value == ""


def text_type(text: str) -> ColumnType:
    """Return the type of a text: "int", "float", or else "text"."""
    stripped = text.strip(_BLANKS)
    if _WHOLE_TEXT.fullmatch(stripped):
        return "int"
    if _NUMBER_TEXT.fullmatch(stripped) and math.isfinite(float(stripped)):
        return "float"
    return "text"


def converts(value: object, column_type: ColumnType) -> bool:
    """Return True if a value that is not empty converts to its column's type."""
    if column_type == "text":
        return True
    if isinstance(value, str):
        found = text_type(value)
        return found == "int" if column_type == "int" else found != "text" and math.isfinite(float(value))
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return column_type == "int" or value.bit_length() < 1_024
    return isinstance(value, float) and math.isfinite(value) and (column_type == "float" or value.is_integer())


def parse_json(text: str) -> Any:
    """Return the JSON value of a text.

    Return None if the text is not JSON, nests too deep or is null.
    """
    if text.count("[") + text.count("{") > MAX_NESTING and _nesting(text) > MAX_NESTING:
        return None
    try:
        return _DECODER.decode(text)
    except ValueError:
        return None


def csv_reader(lines: Iterable[str]) -> Iterator[list[str]]:
    """Parse lines that keep their ends with Python's csv.

    This raises the process's limit of the longest field to MAX_FIELD_CHARACTERS.
    """
    if csv.field_size_limit() < MAX_FIELD_CHARACTERS:
        csv.field_size_limit(MAX_FIELD_CHARACTERS)
    return csv.reader(lines)


def _count_fields(raw: str) -> int:
    return sum(len(fields) for fields in csv_reader(io.StringIO(raw, newline="")))


def _shortened(value: object) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 60 else shown[:60] + "..."


def _nesting(text: str) -> int:
    depth = deepest = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        if match[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif match[0] in "]}":
            depth -= 1
    return deepest


def _whole(digits: str) -> int | str:
    """Convert a JSON int; beyond Python's limit (4,300 digits) return its text.

    `text_type` treats that text as an int too.
    """
    return int(digits) if len(digits) <= 4_000 else digits


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_int=_whole, parse_constant=_no_constant)
