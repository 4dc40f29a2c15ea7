"""Derive a batch's tags codes and key hashes for consume queues and the index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage.records import native_kernels
from raymq.storage.records.byte_rows import Int64s
from raymq.storage.records.indexed_properties import find_tags_and_keys
from raymq.storage.records.java_hash import index_hashes, prefix_hash, tags_codes
from raymq.storage.records.native_kernels import Kernels
from raymq.storage.records.record_batch import Batch

#: The number of keys per record for which space is allocated at first.
_KEYS_A_RECORD: Final = 4


@dataclass(frozen=True, slots=True)
class IndexInputs:
    """The tags codes and key hashes of a batch.

    `tags_codes` has one code per record. `key_hashes` has the index hashes of all keys in log order, and `key_owners`
    the index of each key's record.
    """

    tags_codes: Int64s
    key_hashes: npt.NDArray[np.int32]
    key_owners: Int64s

    def without(self, unwanted: npt.NDArray[np.bool_]) -> IndexInputs:
        """Return a copy without the keys of the records that `unwanted` marks."""
        kept = ~unwanted[self.key_owners]
        return IndexInputs(self.tags_codes, self.key_hashes[kept], self.key_owners[kept])


def derive_index_inputs(batch: Batch) -> IndexInputs:
    """Return the tags codes and key hashes of a batch; see `IndexInputs`."""
    if native_kernels.kernels is not None and len({group.topic for group in batch.groups}) == 1:
        found = _compiled(native_kernels.kernels, batch)
        if found is not None:
            return found
    return _of_any(batch)


def _compiled(kernels: Kernels, batch: Batch) -> IndexInputs | None:
    """Derive them with compiled code.

    Return None if a key or tag is not ASCII, or if there are too many keys.
    """
    codes = np.empty(len(batch), np.int64)
    hashes = np.empty(_KEYS_A_RECORD * len(batch), np.int32)
    owners = np.empty(len(hashes), np.int64)
    topic_hash = prefix_hash(batch.groups[0].topic)
    count = kernels.derive(batch.records, batch.properties_at, batch.ends, topic_hash, codes, hashes, owners)
    return None if count < 0 else IndexInputs(codes, hashes[:count], owners[:count])


def _of_any(batch: Batch) -> IndexInputs:
    found = find_tags_and_keys(batch.records, batch.properties_at, batch.ends)
    codes = np.zeros(len(batch), np.int64)
    if len(found.tags):
        codes[found.tags.owners] = tags_codes(batch.records, found.tags.starts, found.tags.ends)
    keys = found.keys
    if not len(keys):
        return IndexInputs(codes, np.empty(0, np.int32), np.empty(0, np.int64))
    prefixes = np.empty(len(batch), np.uint32)
    for group in batch.groups:
        prefixes[slice(None) if group.members is None else group.members] = prefix_hash(group.topic)
    return IndexInputs(codes, index_hashes(prefixes[keys.owners], batch.records, keys.starts, keys.ends), keys.owners)
