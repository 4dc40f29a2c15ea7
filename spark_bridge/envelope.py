"""Build the DataFrame columns of a message besides its body, from the client's Arrow tables.

This module runs in Spark's Python workers.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

#: In the order of the DataFrame. `queue` is made of two columns; the others are unchanged.
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


#: The columns that `queue` is made of.
_OF_QUEUE = frozenset({"broker", "queue_id"})


def needed_columns(names: Iterable[str], *, decoded: bool) -> frozenset[str]:
    """Return the table columns from which the DataFrame columns `names` are made.

    Args:
        decoded: whether other names than a message's columns are decoded from its body.
    """
    needed: set[str] = set()
    for name in names:
        if name == "queue":
            needed |= _OF_QUEUE
        elif name in ENVELOPE:
            needed.add(name)
        else:
            needed |= {"body", "properties"} if decoded else {"body"}
    return frozenset(needed)


def envelope_column(table: pa.Table, name: str) -> pa.Array:
    """Return a DataFrame column, from a table as `storage.records.table` makes it."""
    if name == "queue":
        parts = [table.column(part).combine_chunks() for part in ("broker", "queue_id")]
        return pa.StructArray.from_arrays(parts, names=["broker", "id"])
    return table.column(name).combine_chunks()
