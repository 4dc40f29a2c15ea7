"""The data of `raymq demo`: CSV, JSONL or Parquet as a stream of records, each one message.

`describe` reads the file once to count its records and to find its columns' types; `read` reads it again and yields one
`InputRecord` each. Both hold one record (Parquet: one batch) at a time, never the file. `InputPlan.rule` tells from a
message's body alone whether its record is dirty, and why: rule.py.

    format   a record                             its body
    CSV      RFC 4180, as Python's csv reads it   a JSON object, header -> value; with another number of fields than the
                                                  header its raw text (csv_input.py)
    JSONL    a line                               the line as it stands (jsonl_input.py)
    Parquet  a row                                a JSON object (parquet_input.py)

What the formats leave open is decided so: blank lines are no records; a byte order mark is skipped; a header's empty
name becomes `column_<position>`, a repeated one `<name>_<position>`; the types of CSV's columns are found without the
records that have another number of fields. What counts as a number stands in rule.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib import resources
from pathlib import Path

from raymq.demo import csv_input, jsonl_input
from raymq.demo.plan import MAX_BODY_BYTES, InputPlan, InputRecord, empty, input_key, message_key, not_readable
from raymq.demo.rule import DirtyRule, Format
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
    """The data set that comes with RayMQ (datasets/README.md), as a file while the context is open."""
    return resources.as_file(resources.files("raymq.datasets") / "flights.csv")


def describe(path: str | Path, key: str | None = None, *, max_body_bytes: int = MAX_BODY_BYTES) -> InputPlan:
    """Read the file once: format (by suffix, else by content), columns and their types, how many records it has.

    `key` is the column whose values become the messages' keys; None takes the first.

    Raises:
        InvalidInput: `input` is missing, no regular file, not readable, empty, not UTF-8, or has a record that is too
            large for a message; `key` is no column, or a record's key is too long.
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
    """The records of the file that `plan` describes, in order.

    Raises:
        InvalidInput: the file can no longer be read, or a record or its key is too large for a message (which
            `describe` would have said, except of Parquet).
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
        raise not_readable(path, error) from error
    if not start:
        raise empty(path)
    known = _SUFFIXES.get(path.suffix.lower())
    if known is not None:
        return known
    if start.startswith(b"PAR1"):
        return "parquet"
    return "jsonl" if start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in {b"{", b"["} else "csv"
