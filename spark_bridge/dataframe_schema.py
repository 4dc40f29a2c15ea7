"""The columns of a topic's DataFrame as Spark types.

This module runs on the driver; fetch_ranges.py does the same for the Python workers.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from raymq.client.errors import InvalidInput
from raymq.spark_bridge.body_decoder import CORRUPT

BODY = "body"

#: Spark 4 requires the argument that Spark 3.5 does not have: timestamps are converted to Arrow in UTC.
_UTC: Final = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}

#: The columns of every message besides its body.
_ENVELOPE = [
    StructField("topic", StringType(), nullable=False),
    StructField("queue", StructType([StructField("broker", StringType()), StructField("id", IntegerType())])),
    StructField("offset", LongType(), nullable=False),
    StructField("message_id", StringType()),
    StructField("unique_key", StringType()),
    StructField("keys", ArrayType(StringType())),
    StructField("tags", StringType()),
    StructField("properties", MapType(StringType(), StringType())),
    StructField("born_timestamp", TimestampType()),
    StructField("store_timestamp", TimestampType()),
]


def message_schema(decoded: StructType | None = None) -> StructType:
    """Return the columns of a read: the body, or its decoded columns and `_corrupt`.

    Raises:
        InvalidInput: a decoded column has the name of another column, or a type that Arrow does not have.
    """
    if decoded is None:
        return StructType([*_ENVELOPE, StructField(BODY, BinaryType())])
    taken = {field.name.lower() for field in _ENVELOPE} | {CORRUPT}
    for field in decoded.fields:
        if field.name.lower() in taken:  # Spark's column names are case-insensitive.
            raise InvalidInput("schema", "column names that are not taken and not repeated", field.name)
        taken.add(field.name.lower())
    schema = StructType([*_ENVELOPE, *decoded.fields, StructField(CORRUPT, BinaryType())])
    arrow_schema(schema)
    return schema


def chosen_columns(schema: StructType, names: Sequence[str] | None) -> StructType:
    """Return the named columns of `schema` in the order of `names`; all columns for None.

    Raises:
        InvalidInput: a column does not exist or is named twice, or no column is named.
    """
    if names is None:
        return schema
    known = schema.names
    wrong = [name for name in names if name not in known]
    if isinstance(names, str) or not names or wrong or len(set(names)) < len(names):
        raise InvalidInput("columns", f"a list of some of {known}, each once", names)
    return StructType([schema[name] for name in names])


def parse_schema(schema: str | DataType) -> StructType:
    """Parse a schema given as DDL text ("id INT, name STRING") or as a StructType.

    A body may lack any value, whatever the schema says, so all fields of the returned schema are nullable, at every
    depth.

    Raises:
        InvalidInput: neither of the two, or text that Spark cannot parse, or a struct with two fields of one name.
    """
    if isinstance(schema, str):
        from pyspark.errors import PySparkException
        from pyspark.sql.types import _parse_datatype_string

        try:
            schema = _parse_datatype_string(schema)
        except PySparkException as error:
            raise InvalidInput("schema", "DDL such as 'id INT, name STRING'", str(error)) from None
    if not isinstance(schema, StructType) or not schema.fields:
        raise InvalidInput("schema", "DDL text or a StructType with at least one field", schema)
    relaxed: StructType = nullable(schema)
    return relaxed


def nullable(kind: Any) -> Any:
    """Return the type with nulls allowed everywhere except for the keys of maps."""
    if isinstance(kind, StructType):
        if len(set(kind.names)) < len(kind.names):
            raise InvalidInput("schema", "fields of other names in one struct", kind.names)
        return StructType([StructField(field.name, nullable(field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(nullable(kind.keyType), nullable(kind.valueType))
    return kind


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow types of `schema`; raise InvalidInput if a type has no Arrow type."""
    from pyspark.errors import PySparkException

    try:
        return to_arrow_schema(schema, **_UTC)
    except (PySparkException, TypeError, ValueError) as error:
        raise InvalidInput("schema", "types that Arrow has", str(error)) from None
