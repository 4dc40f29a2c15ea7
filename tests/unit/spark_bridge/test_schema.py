"""Test Spark schemas of reads: their columns, and fields that bodies may lack."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import ArrayType, IntegerType, MapType, StringType, StructField, StructType

from raymq.client.errors import InvalidInput
from raymq.spark_bridge.body_decoder import JSON, BodyDecoder
from raymq.spark_bridge.dataframe_schema import arrow_schema, message_schema, parse_schema

INNER = StructType([StructField("b", IntegerType(), nullable=False)])
#: Every position in a schema that can be "not nullable".
STRICT = {
    "struct": INNER,
    "array": ArrayType(IntegerType(), containsNull=False),
    "map": MapType(StringType(), IntegerType(), valueContainsNull=False),
    "deeper": ArrayType(MapType(StringType(), INNER, valueContainsNull=False), containsNull=False),
}


def has_required(kind: pa.DataType) -> bool:
    """Return whether anything in `kind` except a map's keys must not be null."""
    if pa.types.is_map(kind):
        return not kind.item_field.nullable or has_required(kind.item_type)
    fields = [kind.field(n) for n in range(kind.num_fields)]
    return any(not field.nullable or has_required(field.type) for field in fields)


@pytest.mark.parametrize("kind", STRICT.values(), ids=STRICT.keys())
def test_decoded_columns_are_nullable_at_every_depth(kind: Any) -> None:
    decoded = parse_schema(StructType([StructField("a", kind, nullable=False)]))
    for schema in (arrow_schema(decoded), arrow_schema(message_schema(decoded))):
        field = schema.field("a")
        assert field.nullable
        assert not has_required(field.type)


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("struct", b'{"a": {"b": 1}}', {"b": 1}),
        ("struct", b'{"a": {}}', {"b": None}),
        ("struct", b'{"a": {"b": null}}', {"b": None}),
        ("struct", b"{}", None),
        ("array", b'{"a": [1]}', [1]),
        ("array", b'{"a": [1, null]}', [1, None]),
        ("map", b'{"a": {"x": 1}}', [("x", 1)]),
        ("map", b'{"a": {"x": null}}', [("x", None)]),
        ("deeper", b'{"a": [null, {"x": null}, {"y": {}}]}', [None, [("x", None)], [("y", {"b": None})]]),
    ],
)
def test_missing_required_field_is_decoded_as_null(kind: str, body: bytes, expected: Any) -> None:
    decoded = parse_schema(StructType([StructField("a", STRICT[kind])]))
    value, corrupt = BodyDecoder(arrow_schema(decoded), JSON).decode(pa.array([body]), pa.nulls(1, pa.string()))
    assert value.cast(arrow_schema(message_schema(decoded)).field("a").type).to_pylist() == [expected]
    assert corrupt.to_pylist() == [None]


@pytest.mark.parametrize("around", [None, StructType, ArrayType], ids=["top", "struct", "array"])
def test_duplicate_field_names_in_a_struct_are_refused(around: Any) -> None:
    twice: Any = StructType([StructField("a", IntegerType()), StructField("a", StringType())])
    if around is not None:
        inner = ArrayType(twice) if around is ArrayType else twice
        twice = StructType([StructField("outer", inner)])
    with pytest.raises(InvalidInput, match="schema"):
        parse_schema(twice)
