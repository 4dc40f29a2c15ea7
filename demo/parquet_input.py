"""Read Parquet for `raymq demo`: each row is a JSON object.

Values without a JSON type are written as strings: decimals, times, dates (ISO 8601, at most microseconds), binaries
(base64 if they are not UTF-8), and infinities ("Infinity" and "-Infinity"). NaN is null (programs write it for missing
values), durations are seconds; lists, structs and maps (as pairs) stay nested. A value always has its column's type, so
only an empty key makes a row dirty.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raymq.demo.dirty_rule import ColumnType
from raymq.demo.input_plan import (
    InputPlan,
    InputRecord,
    empty_file_error,
    key_column,
    key_text,
    unique_names,
    unreadable_file_error,
)

_BATCH_ROWS = 1_024
_KIND = "a Parquet file"

_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def describe(path: Path, key: str | None, max_body_bytes: int) -> InputPlan:
    """Read the file's footer: columns, types, number of rows.

    Raise InvalidInput as `demo_input.describe`.
    """
    try:
        with pq.ParquetFile(path) as file:
            schema: pa.Schema = file.schema_arrow
            rows = int(file.metadata.num_rows)
    except (pa.ArrowException, OSError) as error:
        raise unreadable_file_error(path, error, _KIND) from error
    columns = unique_names(list(schema.names))
    if not columns:
        raise empty_file_error(path)
    types = {name: _column_type(each.type) for name, each in zip(columns, schema, strict=True)}
    return InputPlan(path, "parquet", rows, columns, types, key_column(key, columns), max_body_bytes)


def read(plan: InputPlan) -> Iterator[InputRecord]:
    """Yield the rows in order; one batch is in memory at a time.

    Raises:
        InvalidInput: the file cannot be read, has a value beyond Python's types (a date after the year 9999), or a row
            is too large for a message.
    """
    rule = plan.rule
    for number, row in enumerate(_rows(plan.path), start=1):
        values = dict(zip(plan.columns, row, strict=True))
        yield plan.record(number, key_text(values[plan.key]), _to_json(values), rule.reason_of(values), values)


def _rows(path: Path) -> Iterator[tuple[Any, ...]]:
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False):
                columns = [[_json_value(value) for value in _coarse_times(each).to_pylist()] for each in batch.columns]
                yield from zip(*columns, strict=True)
    # LookupError is raised for an unknown time zone.
    except (pa.ArrowException, OSError, OverflowError, ValueError, LookupError) as error:
        raise unreadable_file_error(path, error, _KIND) from error


def _column_type(arrow_type: pa.DataType) -> ColumnType:
    if pa.types.is_dictionary(arrow_type):
        return _column_type(arrow_type.value_type)
    if pa.types.is_integer(arrow_type):
        return "int"
    return "float" if pa.types.is_floating(arrow_type) or pa.types.is_decimal(arrow_type) else "text"


def _coarse_times(column: pa.Array) -> pa.Array:
    """Truncate times to microseconds at any depth, because Python has no finer ones."""
    target = _coarse_type(column.type)
    return column if target == column.type else column.cast(target, safe=False)


def _coarse_type(arrow_type: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(arrow_type) and arrow_type.unit == "ns":
        return pa.timestamp("us", arrow_type.tz)
    if pa.types.is_time64(arrow_type):
        return pa.time64("us")
    if pa.types.is_duration(arrow_type) and arrow_type.unit == "ns":
        return pa.duration("us")
    if pa.types.is_struct(arrow_type):
        return pa.struct([each.with_type(_coarse_type(each.type)) for each in arrow_type])
    if pa.types.is_list(arrow_type):
        return pa.list_(arrow_type.value_field.with_type(_coarse_type(arrow_type.value_type)))
    return arrow_type


def _json_value(value: Any) -> Any:
    """Convert a value of `to_pylist` to a JSON type."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {name: _json_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(each) for each in value]
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, dt.date | dt.time):  # A datetime is a date too.
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    return str(value) if isinstance(value, decimal.Decimal) else repr(value)


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return base64.b64encode(value).decode("ascii")
