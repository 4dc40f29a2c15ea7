"""Check the columns of a write, and convert them for the tasks.

A type that messages cannot hold is refused with the name of its column, before any task runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    NumericType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from raymq.client.errors import InvalidInput

_TIMES = (TimestampType, TimestampNTZType)
_TEXTS = (StringType, CharType, VarcharType)
#: The types of keys. The text of any other type contains blanks, or the type has no text.
_KEY_TYPES = (*_TEXTS, NumericType, BooleanType, DateType, *_TIMES)
_WHOLE = (ByteType, ShortType, IntegerType, LongType)
#: The types of a struct's fields, besides structs, arrays and maps of them.
_FIELD_TYPES = (
    *_TEXTS,
    BinaryType,
    BooleanType,
    *_WHOLE,
    FloatType,
    DoubleType,
    DecimalType,
    DateType,
    *_TIMES,
    NullType,
)


def write_columns(
    df: DataFrame,
    body: str,
    keys: str | None,
    tags: str | None,
    properties: str | None,
    sharding_key: str | None,
    deliver_at: str | None,
    delay_level: str | None,
) -> dict[str, Column]:
    """Return the columns of messages by argument name; the arguments are `SparkBridge.write`'s.

    Raises:
        InvalidInput: a column does not exist, or has a type that messages cannot hold.
    """
    ways = {
        "keys": (keys, _keys),
        "tags": (tags, _tags),
        "properties": (properties, _properties),
        "sharding_key": (sharding_key, _sharding_key),
        "deliver_at": (deliver_at, _deliver_at),
        "delay_level": (delay_level, _delay_level),
    }
    columns = {"body": _body(df, body)}
    return columns | {field: column(df, name) for field, (name, column) in ways.items() if name is not None}


def _column_type(df: DataFrame, field: str, name: str) -> DataType:
    if not isinstance(name, str) or df.columns.count(name) != 1:
        raise InvalidInput(field, f"the name of one of the columns {df.columns}, and of no other", name)
    return df.schema[name].dataType


def _refused(field: str, allowed: str, name: str, kind: DataType) -> InvalidInput:
    return InvalidInput(field, allowed, f"{name}: {kind.simpleString()}")


def _column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _body(df: DataFrame, name: str) -> Column:
    kind = _column_type(df, "body", name)
    if not isinstance(kind, (*_TEXTS, BinaryType, StructType)):
        raise _refused("body", "a column of binary, string or struct", name, kind)
    for place, inner in unsupported_fields(name, kind):
        raise _refused("body", "fields of types that messages can hold, each with a name of its own", place, inner)
    return _column(name)


def unsupported_fields(place: str, kind: DataType) -> Iterator[tuple[str, DataType]]:
    """Yield each place and type within a column that msgpack does not restore unchanged."""
    if isinstance(kind, StructType):
        if len(set(kind.names)) < len(kind.names):
            yield place, kind
        for field in kind.fields:
            yield from unsupported_fields(f"{place}.{field.name}", field.dataType)
    elif isinstance(kind, ArrayType):
        yield from unsupported_fields(f"{place}.element", kind.elementType)
    elif isinstance(kind, MapType):
        yield from unsupported_fields(f"{place}.key", kind.keyType)
        yield from unsupported_fields(f"{place}.value", kind.valueType)
    elif not isinstance(kind, _FIELD_TYPES):
        yield place, kind


def _keys(df: DataFrame, name: str) -> Column:
    """Return the keys as text: one key per row, or a list of keys."""
    kind = _column_type(df, "keys", name)
    if isinstance(kind, ArrayType) and isinstance(kind.elementType, _KEY_TYPES):
        if isinstance(kind.elementType, _TIMES):
            return F.transform(_column(name), _time_text)
        return _column(name).cast(ArrayType(StringType()))
    if isinstance(kind, _KEY_TYPES):
        return _text(name, kind)
    raise _refused("keys", "a column of text, numbers, booleans, dates or timestamps, or lists of them", name, kind)


def _sharding_key(df: DataFrame, name: str) -> Column:
    kind = _column_type(df, "sharding_key", name)
    if not isinstance(kind, _KEY_TYPES):
        raise _refused("sharding_key", "a column of text, numbers, booleans, dates or timestamps", name, kind)
    return _text(name, kind)


def _text(name: str, kind: DataType) -> Column:
    return _time_text(_column(name)) if isinstance(kind, _TIMES) else _column(name).cast(StringType())


def _time_text(column: Column) -> Column:
    """Convert a time to ISO 8601.

    Spark's text of a time has a blank, which keys must not have.
    """
    return F.translate(column.cast(StringType()), " ", "T")


def _tags(df: DataFrame, name: str) -> Column:
    kind = _column_type(df, "tags", name)
    if not isinstance(kind, _TEXTS):
        raise _refused("tags", "a column of string", name, kind)
    return _column(name)


def _properties(df: DataFrame, name: str) -> Column:
    kind, expected = _column_type(df, "properties", name), MapType(StringType(), StringType())
    if kind.simpleString() != expected.simpleString():
        raise _refused("properties", f"a column of {expected.simpleString()}", name, kind)
    return _column(name)


def _deliver_at(df: DataFrame, name: str) -> Column:
    kind = _column_type(df, "deliver_at", name)
    if isinstance(kind, TimestampType):
        return _column(name)
    if isinstance(kind, TimestampNTZType):  # Local times in the session's time zone.
        return _column(name).cast(TimestampType())
    if isinstance(kind, NumericType):
        return _column(name).cast(DoubleType())
    raise _refused("deliver_at", "a column of timestamps, or of seconds since 1970", name, kind)


def _delay_level(df: DataFrame, name: str) -> Column:
    kind = _column_type(df, "delay_level", name)
    if not isinstance(kind, _WHOLE):
        raise _refused("delay_level", "a column of whole numbers", name, kind)
    return _column(name).cast(LongType())
