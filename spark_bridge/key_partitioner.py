"""Choose the queues of rows with keys.

A producer of the same cluster chooses the same queue for the same sharding key.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raymq.spark_bridge.table_batches import cast_column
from raymq.storage.records.java_hash import java_hash, java_hashes
from raymq.storage.records.property_columns import spans

Int64s = npt.NDArray[np.int64]

#: The queue number of a row without a key: it may go to any queue.
NO_KEY = -1


def queues_for_keys(keys: pa.Array, count: int) -> Int64s:
    """Return the queue number of each row's key; NO_KEY for rows without a key.

    The number is an index, below `count`, into the sorted queues.

    Args:
        keys: text, or lists of text whose first value is used, in Arrow's small or large types. Null and "" are no key.
    """
    is_lists = pa.types.is_list(keys.type) or pa.types.is_large_list(keys.type)
    texts = cast_column(_first_of_each(keys) if is_lists else keys, pa.string()).fill_null("")
    starts, ends, data = spans(texts)
    hashes, foreign = java_hashes(data, starts, ends)
    signed = hashes.view(np.int32).astype(np.int64)
    for row in np.flatnonzero(foreign).tolist():
        signed[row] = java_hash(texts[row].as_py())
    found: Int64s = np.abs(signed) % count
    found[starts == ends] = NO_KEY
    return found


def _first_of_each(lists: pa.Array) -> pa.Array:
    """Return the first value of each list; null for an empty list."""
    lengths = np.asarray(pc.list_value_length(lists).fill_null(0), np.int64)
    starts = np.cumsum(lengths) - lengths
    return lists.flatten().take(pa.array(starts, mask=lengths == 0))
