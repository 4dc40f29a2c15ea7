"""Which tables and DataFrames go into one another, and what is refused by its column's name."""

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

#: What both sides have in the same form.
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


def test_the_common_types_come_back_as_they_were() -> None:
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
def test_an_arrow_type_that_dataframes_do_not_have_is_refused_by_its_column(kind: pa.DataType, place: str) -> None:
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
def test_a_spark_type_that_tables_do_not_have_is_refused_by_its_column(kind: object, place: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        schema_of_dataframe(StructType([StructField("ok", IntegerType()), StructField("c", kind)]))  # type: ignore[arg-type]
    assert caught.value.field == "df"
    assert str(caught.value.actual).startswith(place)


def test_no_columns_and_two_of_one_name_are_refused() -> None:
    for schema in (pa.schema([]), pa.schema([("a", pa.int8()), ("a", pa.int8())]), StructType([]), 3):
        with pytest.raises(InvalidInput):
            schema_of_tables(schema)  # type: ignore[arg-type]
    for fields in ([], [StructField("a", LongType()), StructField("a", LongType())]):
        with pytest.raises(InvalidInput):
            schema_of_dataframe(StructType(fields))


def test_a_table_of_another_schema_is_told_by_its_column() -> None:
    wanted = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.field("element", pa.string())))])
    named = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.list_(pa.field("item", pa.string())))])
    assert schema_difference(named, wanted) is None
    assert schema_difference(wanted.set(0, pa.field("a", pa.int32())), wanted) == "column a of int32, not int64"
    assert "columns ['b', 'a']" in str(schema_difference(pa.schema([wanted.field(1), wanted.field(0)]), wanted))


def test_batches_become_tables_of_some_size_in_their_order() -> None:
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
def test_more_nulls_within_lists_than_there_are_rows_stay_as_they_are(kind: pa.DataType) -> None:
    """Arrow's cast gives them as many as there are rows, also into the type that they have."""
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
