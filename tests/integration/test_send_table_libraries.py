"""Test send_table with tables of the real packages pandas, polars, DuckDB and pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from raymq.client import Admin, Connection, InvalidInput, Producer, PullConsumer
from raymq.client.produce.message_encoder import arrow_table

ROWS = 3
IDS, BODIES, KINDS = ["a", "b", "c"], ["one", "two", "three"], ["x", "y", "x"]
SQL = "select * from (values ('a', 'one', 'x'), ('b', 'two', 'y'), ('c', 'three', 'x')) t(id, body, kind)"


def plain_table() -> pa.Table:
    return pa.table({"id": IDS, "body": BODIES, "kind": KINDS})


def convert_columns(convert: Callable[[list[str]], pa.Array]) -> pa.Table:
    return pa.table({"id": convert(IDS), "body": convert(BODIES), "kind": convert(KINDS)})


class OneArray:
    """Offer only `__arrow_c_array__`."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> Any:
        return plain_table().to_batches()[0].__arrow_c_array__(requested_schema)


TABLES: dict[str, Callable[[], Any]] = {
    "pyarrow table": plain_table,
    "pyarrow batch": lambda: plain_table().to_batches()[0],
    "pyarrow reader": lambda: plain_table().to_reader(max_chunksize=2),
    "string_view": lambda: convert_columns(lambda values: pa.array(values, pa.string_view())),
    "binary_view bodies": lambda: plain_table().set_column(
        1, "body", pa.array(BODIES, pa.string()).cast(pa.binary_view())
    ),
    "large_string": lambda: convert_columns(lambda values: pa.array(values, pa.large_string())),
    "dictionary": lambda: convert_columns(lambda values: pa.array(values).dictionary_encode()),
    "dictionary of views": lambda: convert_columns(
        lambda values: pa.DictionaryArray.from_arrays(
            pa.array([0, 1, 2], pa.int8()), pa.array(values, pa.string_view())
        )
    ),
    "run ends": lambda: plain_table().set_column(
        0, "id", pa.RunEndEncodedArray.from_arrays(pa.array([1, 2, 3], pa.int16()), IDS)
    ),
    "extension": lambda: plain_table().set_column(
        1, "body", pa.ExtensionArray.from_storage(pa.json_(), pa.array(BODIES))
    ),
    "one array": OneArray,
    "pandas": lambda: pd.DataFrame({"id": IDS, "body": BODIES, "kind": KINDS}),
    "pandas, categories and an index": lambda: pd.DataFrame(
        {"id": IDS, "body": [text.encode() for text in BODIES], "kind": pd.Categorical(KINDS)}, index=[7, 8, 9]
    ),
    "pandas on Arrow": lambda: pd.DataFrame({"id": IDS, "body": BODIES, "kind": KINDS}).convert_dtypes(
        dtype_backend="pyarrow"
    ),
    "polars": lambda: pl.DataFrame({"id": IDS, "body": BODIES, "kind": KINDS}),
    "polars, categories and lists": lambda: pl.DataFrame(
        {"id": [[each] for each in IDS], "body": BODIES, "kind": pl.Series(KINDS, dtype=pl.Categorical)}
    ),
    "duckdb": lambda: duckdb.sql(SQL),
    "duckdb, enum and blob": lambda: duckdb.sql(
        f"select id, body::blob as body, kind::enum('x', 'y') as kind from ({SQL})"
    ),
}


@pytest.fixture(scope="module")
def table_topics() -> Iterator[int]:
    return iter(range(1_000))


@pytest.mark.parametrize("name", list(TABLES))
def test_send_table_accepts_tables_of_any_library(
    mq: Connection, admin: Admin, table_topics: Iterator[int], name: str
) -> None:
    topic = f"tables-{next(table_topics)}"
    admin.create_topic(topic, queues=1)
    with Producer(mq, "tables") as producer:
        result = producer.send_table(topic, TABLES[name](), body="body", keys="id", tags="kind")
    assert result.rows == ROWS
    with PullConsumer(mq, "readers-of-tables") as consumer:
        found = [
            (message.keys, bytes(message.body).decode(), message.tags)
            for queue in consumer.queues(topic)
            for message in (consumer.seek(queue, "earliest"), consumer.poll(queue, timeout=0.1))[1]
        ]
    assert sorted(found) == sorted(([key], body, kind) for key, body, kind in zip(IDS, BODIES, KINDS, strict=True))


def test_table_without_rows_is_sent(mq: Connection, admin: Admin) -> None:
    """Send an empty pandas frame, whose text columns have no type."""
    admin.create_topic("tables-without-rows", queues=1)
    empty = pd.DataFrame({"body": ["x"], "id": ["k"], "kind": ["a"]})[:0]
    with Producer(mq, "tables") as producer:
        assert producer.send_table("tables-without-rows", empty, body="body", keys="id", tags="kind").rows == 0


def test_struct_column_is_sent_as_properties(mq: Connection, admin: Admin) -> None:
    admin.create_topic("tables-with-properties", queues=1)
    table = pl.DataFrame({"body": ["one", "two"], "p": [{"a": "1", "b": None}, {"a": None, "b": "2"}]})
    with Producer(mq, "tables") as producer, PullConsumer(mq, "readers-of-tables") as consumer:
        producer.send_table("tables-with-properties", table, body="body", properties="p")
        found = []
        for queue in consumer.queues("tables-with-properties"):
            consumer.seek(queue, "earliest")
            found += [message.properties for message in consumer.poll(queue, timeout=0.1)]
        assert sorted(found, key=str) == [{"a": "1"}, {"b": "2"}]
        for bad in ({"a": 1}, {"TAGS": "x"}, {"a": ""}, {"a": "\x01"}):
            with pytest.raises(InvalidInput, match="properties"):
                producer.send_table(
                    "tables-with-properties", pl.DataFrame({"body": ["x"], "p": [bad]}), body="body", properties="p"
                )


@pytest.mark.parametrize("table", [[{"body": "x"}], {"body": ["x"]}, "body", None, 7], ids=repr)
def test_object_without_arrow_interface_raises_type_error(table: Any) -> None:
    with pytest.raises(TypeError, match="__arrow_c_stream__"):
        arrow_table(table)


@pytest.mark.parametrize(
    "table",
    [pl.Series(["x"]), pd.DataFrame({"a": [1, "x"]}), pa.chunked_array([["x"]])],
    ids=["series", "mixed", "chunks"],
)
def test_non_tabular_arrow_object_is_refused(table: Any) -> None:
    with pytest.raises(InvalidInput, match="table"):
        arrow_table(table)


def test_series_error_suggests_to_frame() -> None:
    with pytest.raises(InvalidInput, match=r"table: a table; got .*Series.*to_frame\(\)"):
        arrow_table(pl.Series("body", ["a"]))
