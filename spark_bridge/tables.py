"""Batches gathered to tables, and tables cut into batches: neither is held as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

#: A table in the object store: large enough that its handling costs nothing beside its bytes, and a part only of what
#: a node's object store and a worker have room for.
TABLE_BYTES: Final = 32 << 20
#: What a task gives to Spark's JVM at a time.
BATCH_BYTES: Final = 8 << 20


def in_type(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """The values in a type that makes no difference to them.

    Arrow's cast is asked for nothing that is so already: of nulls within lists it loses the count.
    """
    return column if column.type == kind else column.cast(kind)


def in_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with the columns of `schema`, in its types."""
    columns = [in_type(column, field.type) for column, field in zip(table.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


class Gathered:
    """Makes tables of a schema of a partition's batches. One thread."""

    def __init__(self, schema: pa.Schema, table_bytes: int = TABLE_BYTES) -> None:
        self._schema = schema
        self._table_bytes = table_bytes

    def tables(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """The rows of `batches`, in tables of about `table_bytes`; none for no rows."""
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            if batch.num_rows:
                held.append(batch)
                # Not `nbytes`: Java's Arrow leaves out the offsets of lists in lists that have no values.
                size += batch.get_total_buffer_size()
            if size >= self._table_bytes:
                yield self._table(held)
                held, size = [], 0
        if held:
            yield self._table(held)

    def _table(self, held: list[pa.RecordBatch]) -> pa.Table:
        # An empty one beside the others makes Arrow write every buffer anew, also those that Java left out: what
        # copies tables without Arrow (Ray's pickling) reads the offsets of lists without values, too.
        table = pa.Table.from_batches([*held, held[0].slice(0, 0)]).combine_chunks()
        return in_schema(table, self._schema)


def batches_of(table: pa.Table, batch_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
    """The rows of a table in batches of about `batch_bytes`; none for no rows."""
    if table.num_rows:
        a_row = max(1, table.get_total_buffer_size() // table.num_rows)
        yield from table.to_batches(max_chunksize=max(1, batch_bytes // a_row))
