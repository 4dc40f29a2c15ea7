"""Parquet for `raymq demo`: each row a JSON object. What JSON does not have is written as a string.

Decimals, times, dates (ISO 8601, at most microseconds) and binaries (base64 if they are no UTF-8) become strings,
infinities "Infinity" and "-Infinity", NaN null (what writes it means null), durations seconds; lists, structs and maps
(as pairs) stay nested. A value has its column's type by nature, so that only an empty key makes a row dirty.
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

from raymq.demo.plan import InputPlan, InputRecord, empty, key_column, key_text, not_readable, unique_names
from raymq.demo.rule import ColumnType

_BATCH_ROWS = 1_024
_KIND = "a Parquet file"

_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def describe(path: Path, key: str | None, max_body_bytes: int) -> InputPlan:
    """Read the file's footer: columns, types, number of rows; raises InvalidInput as `input.describe` says."""
    try:
        with pq.ParquetFile(path) as file:
            schema: pa.Schema = file.schema_arrow
            rows = int(file.metadata.num_rows)
    except (pa.ArrowException, OSError) as error:
        raise not_readable(path, error, _KIND) from error
    columns = unique_names(list(schema.names))
    if not columns:
        raise empty(path)
    types = {name: _column_type(each.type) for name, each in zip(columns, schema, strict=True)}
    return InputPlan(path, "parquet", rows, columns, types, key_column(key, columns), max_body_bytes)


def read(plan: InputPlan) -> Iterator[InputRecord]:
    """The rows in order; one batch is in memory at a time.

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
    except (pa.ArrowException, OSError, OverflowError, ValueError, LookupError) as error:  # an unknown time zone
        raise not_readable(path, error, _KIND) from error


def _column_type(arrow_type: pa.DataType) -> ColumnType:
    if pa.types.is_dictionary(arrow_type):
        return _column_type(arrow_type.value_type)
    if pa.types.is_integer(arrow_type):
        return "int"
    return "float" if pa.types.is_floating(arrow_type) or pa.types.is_decimal(arrow_type) else "text"


def _coarse_times(column: pa.Array) -> pa.Array:
    """Times cut to microseconds, at any depth: Python has no finer ones."""
    wanted = _coarse_type(column.type)
    return column if wanted == column.type else column.cast(wanted, safe=False)


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
    """A value of `to_pylist` as one that JSON has."""
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
    if isinstance(value, dt.date | dt.time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    return str(value) if isinstance(value, decimal.Decimal) else repr(value)


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return base64.b64encode(value).decode("ascii")
