"""Complete an idempotent producer's batch of which a crash left only a part.

The missing messages are stored as a batch of their own, with a sequence on its first record. So the state can be
restored from the log alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.core.appending.idempotence import StoredBatch
from raymq.actors.errors import InvalidInput, SequenceGap
from raymq.actors.protocol import RecordPositions
from raymq.storage.records.producer_sequence import ProducerSequence, stamp
from raymq.storage.store import Store


def remaining_batch(
    records: memoryview, sizes: npt.NDArray[np.int32], sequence: ProducerSequence, here: int
) -> tuple[memoryview, npt.NDArray[np.int32]]:
    """Return a batch's records after its first `here`, with a sequence, and their sizes.

    Raise SequenceGap if the sequence does not fit among the properties of the first of them.
    """
    rest = bytearray(records[int(sizes[:here].sum(dtype=np.int64)) :])
    number = ProducerSequence(sequence.producer, sequence.epoch, sequence.first + here, sequence.count - here)
    try:
        grown = stamp(rest, sizes[here:], number)
    except InvalidInput as error:
        raise SequenceGap(
            f"producer {sequence.producer}: only {here} messages of the batch that begins with {sequence.first} are "
            f"stored, and the others cannot be numbered: {error}"
        ) from error
    return memoryview(rest), grown


def to_stored_batch(placed: RecordPositions) -> StoredBatch:
    """Return the place of a batch that was stored with one append, in one queue."""
    return StoredBatch(placed.topic, int(placed.queue_ids[0]), int(placed.queue_offsets[0]), len(placed.queue_offsets))


def physical_offsets(store: Store, batch: StoredBatch) -> npt.NDArray[np.int64]:
    """Return the physical offsets of one run of messages; 0 for expired ones."""
    places = np.zeros(batch.count, np.int64)
    begin = max(batch.offset, store.min_offset(batch.topic, batch.queue_id))
    if (remaining := batch.offset + batch.count - begin) > 0:
        places[-remaining:] = store.entries(batch.topic, batch.queue_id, begin, remaining, written=True)[0]
    return places


def batch_placement(
    batch: StoredBatch, physical_offsets: Callable[[StoredBatch], npt.NDArray[np.int64]]
) -> RecordPositions:
    """Return the position of each message of a batch in one queue.

    `physical_offsets` returns the physical offsets of one run.
    """
    runs = batch.places
    return RecordPositions(
        batch.topic,
        np.full(batch.total, batch.queue_id, np.int32),
        np.concatenate([np.arange(run.offset, run.offset + run.count) for run in runs]),
        np.concatenate([physical_offsets(run) for run in runs]),
    )
