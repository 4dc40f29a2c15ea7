"""Test which columns a source's schema may have, and which columns become messages."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from raymq.client import InvalidInput
from raymq.client.errors import RayMQError
from raymq.spark_bridge import register_source
from raymq.spark_bridge.dataframe_schema import message_schema
from raymq.spark_bridge.spark4_source.source_columns import check_columns, selection_of_schema
from raymq.spark_bridge.spark4_source.source_registration import has_data_sources

TEXT = StringType()


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_read_without_schema_has_message_columns_only() -> None:
    selection = selection_of_schema(message_schema(), "json", None, None)
    assert selection.columns == message_schema()
    assert selection.decoder is None


def test_other_columns_are_decoded_from_the_body() -> None:
    wanted = schema(id=LongType(), offset=LongType(), _corrupt=BinaryType())
    selection = selection_of_schema(wanted, "msgpack", "a || b", None)
    assert selection.columns == wanted
    assert selection.decoder is not None
    assert selection.decoder.names == ["id", "_corrupt"]
    assert selection.tags == {"a", "b"}


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (schema(offset=TEXT), "offset as bigint"),
        (schema(queue=LongType()), "queue as struct"),
        (schema(id=LongType(), body=BinaryType()), "decoded from it"),
        (StructType([StructField("id", LongType(), nullable=False)]), "may be null"),
        (schema(ids=ArrayType(LongType(), containsNull=False)), "may be null"),
        (schema(_corrupt=BinaryType()), "_corrupt"),
        (StructType([]), "columns"),
    ],
)
def test_unreadable_schema_is_refused(wanted: StructType, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        selection_of_schema(wanted, "json", None, None)


def test_write_columns_are_recognized_by_name() -> None:
    all_of_them = schema(
        keys=ArrayType(TEXT), tags=TEXT, properties=MapType(TEXT, TEXT), sharding_key=TEXT, body=BinaryType(),
        deliver_at=TimestampType(), delay_level=IntegerType(),
    )  # fmt: skip
    assert check_columns(all_of_them) == tuple(all_of_them.names)
    assert check_columns(schema(body=schema(a=MapType(TEXT, DoubleType())), deliver_at=DoubleType()))


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"value": TEXT}, "columns"),
        ({"body": TEXT, "id": LongType()}, "columns"),
        ({"body": LongType()}, "body"),
        ({"body": schema(a=schema(b=ArrayType(DataType())))}, "body"),
        ({"body": TEXT, "keys": LongType()}, "keys"),
        ({"body": TEXT, "tags": ArrayType(TEXT)}, "tags"),
        ({"body": TEXT, "sharding_key": LongType()}, "sharding_key"),
        ({"body": TEXT, "properties": MapType(TEXT, LongType())}, "properties"),
        ({"body": TEXT, "deliver_at": TEXT}, "deliver_at"),
        ({"body": TEXT, "delay_level": DoubleType()}, "delay_level"),
    ],
)
def test_column_type_error_names_the_column(columns: dict[str, DataType], field: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        check_columns(schema(**columns))
    assert raised.value.field == field


@pytest.mark.skipif(has_data_sources(), reason="this is Spark 4.2")
def test_register_source_on_older_spark_raises_an_error() -> None:
    session: Any = None
    with pytest.raises(RayMQError, match="sources in Python"):
        register_source(session)
