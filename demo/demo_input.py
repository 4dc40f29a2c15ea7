"""Read the data of `raymq demo`, CSV, JSONL or Parquet, as a stream of records.

Each record becomes one message. `describe` reads the file once to count its records and to determine its columns'
types; `read` reads it again and yields one `InputRecord` each. Both hold one record (Parquet: one batch) at a time,
never the file. `InputPlan.rule` determines from a message's body alone whether its record is dirty, and why:
dirty_rule.py.

    format   a record                             its body
    CSV      RFC 4180, as Python's csv reads it   a JSON object, header -> value; with another number of fields than the
                                                  header its raw text (csv_input.py)
    JSONL    a line                               the line unchanged (jsonl_input.py)
    Parquet  a row                                a JSON object (parquet_input.py)

The formats leave some cases open; these rules apply: blank lines are not records; a byte order mark is skipped; a
header's empty name becomes `column_<position>`, a repeated one `<name>_<position>`; the types of CSV's columns are
determined without the records that have another number of fields. dirty_rule.py defines what counts as a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib import resources
from pathlib import Path

from raymq.demo import csv_input, jsonl_input
from raymq.demo.dirty_rule import DirtyRule, Format
from raymq.demo.input_plan import (
    MAX_BODY_BYTES,
    InputPlan,
    InputRecord,
    empty_file_error,
    input_key,
    message_key,
    unreadable_file_error,
)
from raymq.storage.errors import InvalidInput

__all__ = ["DirtyRule", "InputPlan", "InputRecord", "bundled_flights", "describe", "input_key", "message_key", "read"]

_SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}


def bundled_flights() -> AbstractContextManager[Path]:
    """Provide the bundled data set (datasets/README.md) as a file during the context."""
    return resources.as_file(resources.files("raymq.datasets") / "flights.csv")


def describe(path: str | Path, key: str | None = None, *, max_body_bytes: int = MAX_BODY_BYTES) -> InputPlan:
    """Read the file once: its format, columns, types and number of records.

    The format is determined by the suffix, else by the content. `key` is the column whose values become the messages'
    keys; None takes the first.

    Raises:
        InvalidInput: `input` is missing, not a regular file, not readable, empty, not UTF-8, or has a record that is
            too large for a message; `key` is not a column, or a record's key is too long.
    """
    path = Path(path)
    file_format = _format_of(path)
    if file_format == "csv":
        return csv_input.describe(path, key, max_body_bytes)
    if file_format == "jsonl":
        return jsonl_input.describe(path, key, max_body_bytes)
    from raymq.demo import parquet_input

    return parquet_input.describe(path, key, max_body_bytes)


def read(plan: InputPlan) -> Iterator[InputRecord]:
    """Yield the records of the file that `plan` describes, in order.

    Raises:
        InvalidInput: the file can no longer be read, or a record or its key is too large for a message (`describe`
            raises this earlier, except for Parquet).
    """
    if plan.format == "csv":
        return csv_input.read(plan)
    if plan.format == "jsonl":
        return jsonl_input.read(plan)
    from raymq.demo import parquet_input

    return parquet_input.read(plan)


def _format_of(path: Path) -> Format:
    try:
        if not path.exists():
            raise InvalidInput("input", "a file that exists", str(path))
        if not path.is_file():
            raise InvalidInput("input", "a regular file (it is read twice)", str(path))
        with path.open("rb") as file:
            start = file.read(4_096)
    except OSError as error:
        raise unreadable_file_error(path, error) from error
    if not start:
        raise empty_file_error(path)
    known = _SUFFIXES.get(path.suffix.lower())
    if known is not None:
        return known
    if start.startswith(b"PAR1"):
        return "parquet"
    return "jsonl" if start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in {b"{", b"["} else "csv"
