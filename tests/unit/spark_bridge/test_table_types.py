"""Test which table and DataFrame schemas convert, and errors that name the column."""

from __future__ import annotations

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    ArrayType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

from raymq.client.errors import InvalidInput
from raymq.spark_bridge.table_batches import TableBuilder, cast_table, split_batches
from raymq.spark_bridge.table_types import schema_difference, schema_of_dataframe, schema_of_tables

#: Types that Arrow tables and DataFrames have in the same form.
COMMON = {
    "b": pa.bool_(),
    "i": pa.int8(),
    "l": pa.int64(),
    "f": pa.float32(),
    "d": pa.decimal128(38, 10),
    "s": pa.string(),
    "y": pa.binary(),
    "day": pa.date32(),
    "local": pa.timestamp("us"),
    "instant": pa.timestamp("us", "UTC"),
    "took": pa.duration("us"),
    "nothing": pa.null(),
    "list": pa.list_(pa.struct([("a", pa.map_(pa.string(), pa.list_(pa.int16())))])),
}


def test_common_types_round_trip() -> None:
    schema = pa.schema(list(COMMON.items()))
    assert schema_difference(schema_of_dataframe(schema_of_tables(schema)), schema) is None
    berlin = pa.schema([("at", pa.timestamp("us", "Europe/Berlin"))])
    assert schema_of_dataframe(schema_of_tables(berlin)) == pa.schema([("at", pa.timestamp("us", "UTC"))])
    fields = StructType(
        [StructField("a", LongType(), nullable=False), StructField("b", ArrayType(StringType(), False))]
    )
    assert schema_of_tables(fields).simpleString() == fields.simpleString()
    assert all(field.nullable for field in schema_of_dataframe(fields))


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (pa.uint32(), "c"),
        (pa.float16(), "c"),
        (pa.timestamp("ms"), "c"),
        (pa.timestamp("ns", "UTC"), "c"),
        (pa.date64(), "c"),
        (pa.time64("us"), "c"),
        (pa.large_string(), "c"),
        (pa.string_view(), "c"),
        (pa.large_list(pa.int8()), "c"),
        (pa.list_(pa.int8(), 2), "c"),
        (pa.binary(4), "c"),
        (pa.decimal128(5, -2), "c"),
        (pa.decimal128(2, 5), "c"),
        (pa.decimal256(5, 2), "c"),
        (pa.dictionary(pa.int32(), pa.string()), "c"),
        (pa.map_(pa.string(), pa.list_(pa.struct([("x", pa.uint64())]))), "c.value.element.x"),
        (pa.struct([("x", pa.int8()), ("x", pa.int8())]), "c.x, twice"),
    ],
)
def test_unsupported_arrow_type_error_names_the_column(kind: pa.DataType, place: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        schema_of_tables(pa.schema([("ok", pa.int64()), ("c", kind)]))
    assert caught.value.field == "schema"
    assert str(caught.value.actual).startswith(place)


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (YearMonthIntervalType(), "c"),
        (DayTimeIntervalType(1, 2), "c"),
        (MapType(NullType(), StringType()), "c.key"),
        (ArrayType(StructType([StructField("x", YearMonthIntervalType())])), "c.element.x"),
        (StructType([StructField("x", LongType()), StructField("x", LongType())]), "c.x, twice"),
    ],
)
def test_unsupported_spark_type_error_names_the_column(kind: object, place: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        schema_of_dataframe(StructType([StructField("ok", IntegerType()), StructField("c", kind)]))  # type: ignore[arg-type]
    assert caught.value.field == "df"
    assert str(caught.value.actual).startswith(place)


def test_empty_and_duplicate_columns_are_refused() -> None:
    for schema in (pa.schema([]), pa.schema([("a", pa.int8()), ("a", pa.int8())]), StructType([]), 3):
        with pytest.raises(InvalidInput):
            schema_of_tables(schema)  # type: ignore[arg-type]
    for fields in ([], [StructField("a", LongType()), StructField("a", LongType())]):
        with pytest.raises(InvalidInput):
            schema_of_dataframe(StructType(fields))


def test_schema_difference_names_the_column() -> None:
    wanted = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.field("element", pa.string())))])
    named = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.list_(pa.field("item", pa.string())))])
    assert schema_difference(named, wanted) is None
    assert schema_difference(wanted.set(0, pa.field("a", pa.int32())), wanted) == "column a of int32, not int64"
    assert "columns ['b', 'a']" in str(schema_difference(pa.schema([wanted.field(1), wanted.field(0)]), wanted))


def test_batches_are_combined_into_tables_in_order() -> None:
    schema = pa.schema([("n", pa.int64())])
    batches = [pa.record_batch({"n": list(range(start, start + 100))}, schema=schema) for start in range(0, 1_000, 100)]
    batches.insert(3, batches[0].slice(0, 0))
    tables = list(TableBuilder(schema, 2_000).tables(batches))
    assert [table.num_rows for table in tables] == [300, 300, 300, 100]
    assert [value for table in tables for value in table.column("n").to_pylist()] == list(range(1_000))
    assert list(TableBuilder(schema, 2_000).tables([])) == []
    assert [batch.num_rows for batch in split_batches(tables[0], 800)] == [100, 100, 100]
    assert list(split_batches(schema.empty_table())) == []


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.null()), pa.map_(pa.string(), pa.null()), pa.struct([("a", pa.list_(pa.null()))])], ids=str
)
def test_nulls_within_lists_keep_their_count(kind: pa.DataType) -> None:
    # Arrow's cast of nulls within lists gives one for each row, also into the same type.
    nulls = [None, None, None]
    value = {"a": nulls} if pa.types.is_struct(kind) else nulls
    if pa.types.is_map(kind):
        value = [(str(number), None) for number in range(3)]
    schema = pa.schema([("v", kind)])
    batches = [pa.record_batch([pa.array([value, None], kind)], schema=schema)] * 2
    (made,) = TableBuilder(schema).tables(batches)
    for table in (made, cast_table(made, schema)):
        table.validate(full=True)
        assert table["v"].to_pylist() == [value, None] * 2
