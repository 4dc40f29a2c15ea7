"""Records without their bodies, for readers who want all else: whole records, whose body is empty."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raymq.storage.records import batch as record_batch
from raymq.storage.records import record
from raymq.storage.records.property_columns import gather


def without_bodies(
    pieces: Sequence[memoryview], sizes: npt.NDArray[np.int32]
) -> tuple[Sequence[memoryview], npt.NDArray[np.int32]]:
    """The records in `pieces`, contiguous in each, with empty bodies, and their new sizes; they are copied.

    An empty body is not compressed and has the CRC 0. Records that are not sound are left as they are: their reader
    finds that out as he would have.
    """
    if not len(sizes):
        return pieces, sizes
    block = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
    try:
        batch = record_batch.parse(block, sizes, check_crc=False)
    except record_batch.BadRecord:
        return pieces, sizes
    body_ends = batch.body_at + batch.body_lengths
    # What is kept of each record is its head and what follows the body: two slices, one behind the other.
    starts = np.stack((batch.starts, body_ends), axis=1).reshape(-1)
    ends = np.stack((batch.body_at, batch.ends), axis=1).reshape(-1)
    kept = np.frombuffer(gather(pa.py_buffer(block), starts, ends, pa.binary()).buffers()[2], np.uint8).copy()
    new_sizes = batch.sizes - batch.body_lengths
    new_starts = np.cumsum(new_sizes) - new_sizes
    new_body_at = new_starts + (batch.body_at - batch.starts)
    fields = record_batch.strided(kept.data, ">i4")
    fields[new_starts + record.OFFSET_SIZE] = new_sizes
    fields[new_starts + record.OFFSET_BODY_CRC] = 0
    fields[new_starts + record.OFFSET_SYS_FLAG] = batch.sys_flags & ~record.SYS_FLAG_COMPRESSED
    fields[new_body_at - fields.itemsize] = 0
    return [kept.data], new_sizes.astype(np.int32)
