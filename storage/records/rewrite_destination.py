"""Copy stored records to other queues, a batch at a time.

For example, delayed messages are copied to their original topics when they are due.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raymq.storage.errors import InvalidInput
from raymq.storage.records import record as layout
from raymq.storage.records.property_columns import gather
from raymq.storage.records.record_batch import Batch, strided

_PAIR_END = 2


def rewrite_destinations(
    batch: Batch, topics: Sequence[str], queue_ids: npt.ArrayLike, further: Sequence[bytes]
) -> tuple[memoryview, npt.NDArray[np.int32]]:
    """Copy records with new topics, queue ids and additional properties.

    Body, flags, born time and born host stay the same, and so do the fields that the store stamps. `further` follows
    the record's own properties.

    Args:
        further: for each record whole pairs as `record.encode_properties` makes them; the last value of a repeated name
            counts.

    Returns:
        Contiguous records, ready for `Store.append`, and their sizes.

    Raises:
        InvalidInput: a record's properties become too long.
    """
    count = len(batch)
    names = {topic: topic.encode() for topic in set(topics)}
    long = {topic: len(name) > layout.MAX_TOPIC_BYTES_V1 for topic, name in names.items()}
    middles = {topic: len(name).to_bytes(2 if long[topic] else 1, "big") + name for topic, name in names.items()}
    middle = pa.array([middles[topic] for topic in topics], pa.binary())
    is_long = np.fromiter((long[topic] for topic in topics), np.bool_, count)

    records = bytearray(batch.records)
    block = pa.py_buffer(records)
    own = gather(block, batch.properties_at, batch.ends, pa.binary())
    own_lengths = batch.ends - batch.properties_at
    # RocketMQ's newer clients omit the last separator.
    is_open = (own_lengths > 0) & (np.frombuffer(records, np.uint8)[batch.ends - 1] != _PAIR_END)
    separator = pa.array([b"", b"\x02"], pa.binary()).take(pa.array(is_open.astype(np.int8)))
    more = pa.array(further, pa.binary())
    lengths = own_lengths + is_open + pc.binary_length(more).to_numpy()
    if count and int(lengths.max()) > layout.MAX_PROPERTIES_BYTES:
        raise InvalidInput("properties", f"at most {layout.MAX_PROPERTIES_BYTES} bytes", int(lengths.max()))

    body_ends = batch.body_at + batch.body_lengths
    sizes = body_ends - batch.starts + pc.binary_length(middle).to_numpy() + 2 + lengths
    fields = strided(records, ">i4")
    fields[batch.starts + layout.OFFSET_SIZE] = sizes
    fields[batch.starts + layout.OFFSET_MAGIC] = np.where(is_long, layout.MAGIC_V2, layout.MAGIC_V1)
    fields[batch.starts + layout.OFFSET_QUEUE_ID] = queue_ids
    joined = pc.binary_join_element_wise(
        gather(block, batch.starts, body_ends, pa.binary()),
        middle,
        _two_bytes(lengths),
        own,
        separator,
        more,
        pa.scalar(b"", pa.binary()),
    )
    data = joined.buffers()[2] if count else pa.py_buffer(b"")
    return memoryview(data).cast("B")[: int(sizes.sum())], sizes.astype(np.int32)


def _two_bytes(lengths: npt.NDArray[np.int64]) -> pa.Array:
    offsets = np.arange(0, 2 * len(lengths) + 1, 2, dtype=np.int32)
    data = pa.py_buffer(lengths.astype(">u2").tobytes())
    return pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(offsets), data])
