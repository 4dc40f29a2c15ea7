"""The types that Arrow tables and DataFrames have in common.

Each has exactly one form on either side. Spark silently converts some other types to different values (timestamps in
milliseconds, large lists), and fails on others in the middle of a job. So all other types are refused here, with the
name of their column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from raymq.client.errors import InvalidInput
from raymq.spark_bridge.dataframe_schema import arrow_schema, parse_schema

_SPARK_LEAVES: Final = (
    *(BooleanType, ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType, DecimalType),
    *(StringType, BinaryType, DateType, TimestampType, TimestampNTZType, DayTimeIntervalType, NullType),
)
_ARROW_LEAVES: Final = frozenset(
    [
        *(pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
        *(pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.duration("us")),
    ]
)
_ALLOWED: Final = (
    "columns of bool, int8 to int64, float32, float64, decimal128, string, binary, date32, timestamp[us], "
    "duration[us], null, and lists, structs and maps of these: cast the table first"
)


def schema_of_dataframe(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the tables of a DataFrame; every column may have nulls.

    Raises:
        InvalidInput: the schema has no columns, two of one name, or one of a type that tables do not have.
    """
    _check_names("df", "", schema.names)
    for field in schema.fields:
        for place, kind in _odd_in_spark(field.name, field.dataType):
            raise InvalidInput("df", "columns of types that Arrow tables have", f"{place}: {kind.simpleString()}")
    return arrow_schema(parse_schema(schema))


def schema_of_tables(schema: pa.Schema | StructType | str) -> StructType:
    """Return the DataFrame schema for tables; every column may have nulls.

    Raises:
        InvalidInput: it is not a schema, has no columns, two of one name, or one of a type that DataFrames do not have.
    """
    if not isinstance(schema, pa.Schema):
        parsed = parse_schema(schema)
        schema_of_dataframe(parsed)
        return parsed
    _check_names("schema", "", schema.names)
    for field in schema:
        for place, kind in _odd_in_arrow(field.name, field.type):
            raise InvalidInput("schema", _ALLOWED, f"{place}: {kind}")
    normalized = pa.schema([(field.name, normalize_type(field.type)) for field in schema])
    return parse_schema(from_arrow_schema(normalized, prefer_timestamp_ntz=True))


def normalize_type(kind: pa.DataType) -> pa.DataType:
    """Return the type without the details that do not affect its values.

    These are the names of the inner fields of lists and maps, which of them may be null, and the time zone in which an
    instant is shown.
    """
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_map(kind):
        return pa.map_(normalize_type(kind.key_type), normalize_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(normalize_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, normalize_type(field.type)) for field in kind])
    return kind


def schema_difference(found: pa.Schema, expected: pa.Schema) -> str | None:
    """Describe the first difference between two schemas, None if there is none."""
    if found.names != expected.names:
        return f"columns {found.names}, not {expected.names}"
    for ours, theirs in zip(found, expected, strict=True):
        if normalize_type(ours.type) != normalize_type(theirs.type):
            return f"column {ours.name} of {ours.type}, not {theirs.type}"
    return None


def _check_names(field: str, place: str, names: Sequence[str]) -> None:
    if not names:
        raise InvalidInput(field, "at least one column", place or "none")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidInput(field, "columns with names of their own", f"{place}{twice}, twice")


def _odd_in_spark(place: str, kind: DataType) -> Iterator[tuple[str, DataType]]:
    """Yield each place and type within a column that Arrow tables do not support."""
    if isinstance(kind, StructType):
        _check_names("df", f"{place}.", kind.names)
        for field in kind.fields:
            yield from _odd_in_spark(f"{place}.{field.name}", field.dataType)
    elif isinstance(kind, ArrayType):
        yield from _odd_in_spark(f"{place}.element", kind.elementType)
    elif isinstance(kind, MapType):
        if isinstance(kind.keyType, NullType):  # The type of an empty map(); a key is never null.
            yield f"{place}.key", kind.keyType
        yield from _odd_in_spark(f"{place}.key", kind.keyType)
        yield from _odd_in_spark(f"{place}.value", kind.valueType)
    elif type(kind) not in _SPARK_LEAVES or (
        type(kind) is DayTimeIntervalType and kind != DayTimeIntervalType()
    ):  # Arrow has no "hours to minutes" interval: it would be converted to days to seconds.
        yield place, kind


def _odd_in_arrow(place: str, kind: Any) -> Iterator[tuple[str, pa.DataType]]:
    """Yield each place and type within a column that DataFrames do not support."""
    if pa.types.is_struct(kind):
        _check_names("schema", f"{place}.", [field.name for field in kind])
        for field in kind:
            yield from _odd_in_arrow(f"{place}.{field.name}", field.type)
    elif pa.types.is_map(kind):
        yield from _odd_in_arrow(f"{place}.key", kind.key_type)
        yield from _odd_in_arrow(f"{place}.value", kind.item_type)
    elif pa.types.is_list(kind):
        yield from _odd_in_arrow(f"{place}.element", kind.value_type)
    elif pa.types.is_decimal128(kind):
        if not 0 <= kind.scale <= kind.precision:  # Spark has no such decimals.
            yield place, kind
    elif normalize_type(kind) not in _ARROW_LEAVES:
        yield place, kind
