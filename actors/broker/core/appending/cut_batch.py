"""A batch of an idempotent producer of which a death has left a part: what of it is missing, and where all of it lies.

What is missing is stored as a batch of its own, with a number of its own on its first record: so the log says what
became of it, also to a start that finds nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.core.appending.idempotence import StoredBatch
from raymq.actors.errors import InvalidInput, SequenceGap
from raymq.actors.protocol import Placed
from raymq.storage.records.producer_sequence import ProducerSequence, stamp
from raymq.storage.store import Store


def rest_of(
    records: memoryview, sizes: npt.NDArray[np.int32], sequence: ProducerSequence, here: int
) -> tuple[memoryview, npt.NDArray[np.int32]]:
    """The records of the batch `sequence` behind its first `here`, numbered, and their sizes.

    SequenceGap: there is no room for the number among the properties of the first of them.
    """
    rest = bytearray(records[int(sizes[:here].sum(dtype=np.int64)) :])
    number = ProducerSequence(sequence.producer, sequence.epoch, sequence.first + here, sequence.count - here)
    try:
        grown = stamp(rest, sizes[here:], number)
    except InvalidInput as error:
        raise SequenceGap(
            f"producer {sequence.producer}: of the batch that begins with {sequence.first} only {here} messages are "
            f"here, and the others cannot be numbered: {error}"
        ) from error
    return memoryview(rest), grown


def stored_batch(placed: Placed) -> StoredBatch:
    """Where a batch lies that was stored with one append, in one queue."""
    return StoredBatch(placed.topic, int(placed.queue_ids[0]), int(placed.queue_offsets[0]), len(placed.queue_offsets))


def physical_offsets(store: Store, batch: StoredBatch) -> npt.NDArray[np.int64]:
    """Where the messages of one run lie in the log; 0, where nothing lies any more, of those that have expired."""
    places = np.zeros(batch.count, np.int64)
    begin = max(batch.offset, store.min_offset(batch.topic, batch.queue_id))
    if (left := batch.offset + batch.count - begin) > 0:
        places[-left:] = store.entries(batch.topic, batch.queue_id, begin, left, written=True)[0]
    return places


def placed_at(batch: StoredBatch, physical_offsets: Callable[[StoredBatch], npt.NDArray[np.int64]]) -> Placed:
    """The place of each message of a batch, which all lie in one queue; `physical_offsets` are those of one run."""
    runs = batch.places
    return Placed(
        batch.topic,
        np.full(batch.total, batch.queue_id, np.int32),
        np.concatenate([np.arange(run.offset, run.offset + run.count) for run in runs]),
        np.concatenate([physical_offsets(run) for run in runs]),
    )
