"""Which queue the rows of a key go to: the one that a producer of the same cluster chooses for that sharding key."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raymq.spark_bridge.tables import in_type
from raymq.storage.records.java_hash import java_hash, java_hashes
from raymq.storage.records.property_columns import spans

Int64s = npt.NDArray[np.int64]

#: Of a row without a key: it may go anywhere.
ANYWHERE = -1


def queues_of_keys(keys: pa.Array, count: int) -> Int64s:
    """For each row the number of its key's queue, of `count` that are sorted; ANYWHERE where it has none.

    Args:
        keys: text, or lists of text, whose first counts, of Arrow's small or large types. Null and "" are no key.
    """
    is_lists = pa.types.is_list(keys.type) or pa.types.is_large_list(keys.type)
    texts = in_type(_first_of_each(keys) if is_lists else keys, pa.string()).fill_null("")
    starts, ends, data = spans(texts)
    hashes, foreign = java_hashes(data, starts, ends)
    signed = hashes.view(np.int32).astype(np.int64)
    for row in np.flatnonzero(foreign).tolist():
        signed[row] = java_hash(texts[row].as_py())
    found: Int64s = np.abs(signed) % count
    found[starts == ends] = ANYWHERE
    return found


def _first_of_each(lists: pa.Array) -> pa.Array:
    """The first value of each list; null where there is none."""
    lengths = np.asarray(pc.list_value_length(lists).fill_null(0), np.int64)
    starts = np.cumsum(lengths) - lengths
    return lists.flatten().take(pa.array(starts, mask=lengths == 0))
