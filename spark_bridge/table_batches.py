"""Gather batches into tables, and cut tables into batches, without holding all rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

#: The size of a table in the object store: large enough that the cost per table is negligible, and small compared with
#: a node's object store and a worker's memory.
TABLE_BYTES: Final = 32 << 20
#: The bytes that a task passes to Spark's JVM at a time.
BATCH_BYTES: Final = 8 << 20


def cast_column(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Convert a column to an equivalent type.

    Arrow's cast is not called for a column that has the type already, because it loses the count of nulls within lists.
    """
    return column if column.type == kind else column.cast(kind)


def cast_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with the columns of `schema`, in its types."""
    columns = [cast_column(column, field.type) for column, field in zip(table.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


class TableBuilder:
    """A builder of tables of one schema from a partition's batches, for one thread."""

    def __init__(self, schema: pa.Schema, table_bytes: int = TABLE_BYTES) -> None:
        self._schema = schema
        self._table_bytes = table_bytes

    def tables(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Yield the rows of `batches` in tables of about `table_bytes`; none for no rows."""
        buffered: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            if batch.num_rows:
                buffered.append(batch)
                # `nbytes` would fail: it reads offsets that Java's Arrow omits for lists in lists without values.
                size += batch.get_total_buffer_size()
            if size >= self._table_bytes:
                yield self._table(buffered)
                buffered, size = [], 0
        if buffered:
            yield self._table(buffered)

    def _table(self, buffered: list[pa.RecordBatch]) -> pa.Table:
        # With an additional empty batch Arrow rewrites every buffer, also the offsets that Java omitted: Ray's pickling
        # copies tables without Arrow, and reads the offsets of lists without values too.
        table = pa.Table.from_batches([*buffered, buffered[0].slice(0, 0)]).combine_chunks()
        return cast_table(table, self._schema)


def split_batches(table: pa.Table, batch_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table in batches of about `batch_bytes`; none for no rows."""
    if table.num_rows:
        a_row = max(1, table.get_total_buffer_size() // table.num_rows)
        yield from table.to_batches(max_chunksize=max(1, batch_bytes // a_row))
