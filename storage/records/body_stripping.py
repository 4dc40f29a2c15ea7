"""Remove the bodies from records, for readers that need everything else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raymq.storage.records import record, record_batch
from raymq.storage.records.property_columns import gather


def without_bodies(
    pieces: Sequence[memoryview], sizes: npt.NDArray[np.int32]
) -> tuple[Sequence[memoryview], npt.NDArray[np.int32]]:
    """Return copies of the records with empty bodies, and their new sizes.

    An empty body is not compressed and has the CRC 0. If a record is not valid, all records are returned unchanged, so
    that their reader detects the invalid record.

    Args:
        pieces: buffers, each with contiguous records.
    """
    if not len(sizes):
        return pieces, sizes
    block = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
    try:
        batch = record_batch.parse(block, sizes, check_crc=False)
    except record_batch.BadRecord:
        return pieces, sizes
    body_ends = batch.body_at + batch.body_lengths
    # Two slices of each record are kept: the bytes before the body and the bytes after it.
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
