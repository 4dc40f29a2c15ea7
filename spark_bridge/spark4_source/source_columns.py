"""Check the schema of a read, and the columns of a DataFrame that becomes messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NumericType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from raymq.client import Sql
from raymq.client.errors import InvalidInput
from raymq.spark_bridge.body_decoder import CORRUPT
from raymq.spark_bridge.bounded_read import ReadSelection, select
from raymq.spark_bridge.dataframe_schema import BODY, message_schema, nullable
from raymq.spark_bridge.write_columns import unsupported_fields

_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)
_BODIES: Final = "binary, string or struct"
_TEXT_MAP: Final = MapType(StringType(), StringType())


def selection_of_schema(schema: StructType, format: str, tags: str | None, filter: str | None) -> ReadSelection:  # noqa: A002
    """Return the message parts that a read with this schema needs.

    Columns that are not columns of a message are decoded from its body.

    Raises:
        InvalidInput: a column of a message has another type, or a column cannot be decoded.
    """
    plain = message_schema()
    decoded = [field for field in schema.fields if field.name not in plain.names and field.name != CORRUPT]
    if decoded and BODY in schema.names:
        raise InvalidInput("schema", "the body, or columns that are decoded from it", BODY)
    for field in decoded:
        if nullable(field.dataType) != field.dataType or not field.nullable:
            raise InvalidInput("schema", "columns that may be null, as any part of a body may be missing", field.name)
    selection = select(
        StructType(decoded) if decoded else None, format, schema.names, tags, None if filter is None else Sql(filter)
    )
    for field, own in zip(schema.fields, selection.columns.fields, strict=True):
        if field.dataType.simpleString() != own.dataType.simpleString():
            allowed = f"{own.name} as {own.dataType.simpleString()}"
            raise InvalidInput("schema", allowed, field.dataType.simpleString())
    return replace(selection, columns=schema)


def check_columns(schema: StructType) -> tuple[str, ...]:
    """Return the column names, each of which names a part of the message.

    Raises:
        InvalidInput: the body is missing, or a column is not a part of a message, or has another type than that part.
    """
    names = tuple(schema.names)
    if BODY not in names or len(set(names)) < len(names):
        raise InvalidInput("columns", f"a column named {BODY}, and no name twice", list(names))
    for field in schema.fields:
        _check(field.name, field.dataType)
    return names


def _check(name: str, kind: DataType) -> None:
    """Raise InvalidInput if a column has an unsupported name or type.

    Arrow's values are used without conversion, so columns of other types must be cast in the DataFrame.
    """
    if name == BODY:
        suits, allowed = isinstance(kind, (BinaryType, StringType, StructType)), _BODIES
        for place, inner in unsupported_fields(name, kind) if isinstance(kind, StructType) else ():
            fields = "fields of types that messages can hold, each with a name of its own"
            raise InvalidInput(BODY, fields, f"{place}: {inner.simpleString()}")
    elif name == "keys":
        texts = isinstance(kind, ArrayType) and isinstance(kind.elementType, StringType)
        suits, allowed = texts or isinstance(kind, StringType), "string or array<string>"
    elif name in {"tags", "sharding_key"}:
        suits, allowed = isinstance(kind, StringType), "string"
    elif name == "properties":
        suits, allowed = kind.simpleString() == _TEXT_MAP.simpleString(), _TEXT_MAP.simpleString()
    elif name == "deliver_at":
        suits, allowed = isinstance(kind, (TimestampType, NumericType)), "timestamp, or seconds since 1970"
    elif name == "delay_level":
        suits, allowed = isinstance(kind, _WHOLE), "a whole number"
    else:
        known = "body, keys, tags, properties, sharding_key, deliver_at, delay_level"
        raise InvalidInput("columns", f"some of {known}: select them", name)
    if not suits:
        raise InvalidInput(name, allowed, kind.simpleString())
