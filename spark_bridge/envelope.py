"""The columns of a message beside its body, from Arrow tables as the client makes them. For Spark's Python workers."""

from __future__ import annotations

import pyarrow as pa

#: In the order of the DataFrame; queue is made of two columns, the others stand as they are.
ENVELOPE = (
    "topic",
    "queue",
    "offset",
    "message_id",
    "unique_key",
    "keys",
    "tags",
    "properties",
    "born_timestamp",
    "store_timestamp",
)


def envelope_columns(table: pa.Table) -> list[pa.Array]:
    """The columns before the body, of a table as `record_table.table_from_records` makes it."""
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    columns["queue"] = pa.StructArray.from_arrays([columns["broker"], columns["queue_id"]], names=["broker", "id"])
    return [columns[name] for name in ENVELOPE]
