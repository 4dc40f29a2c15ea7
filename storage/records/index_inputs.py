"""What queue entries and the index need of a batch's properties: the codes of tags and the hashes of keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage.records import compiled
from raymq.storage.records.batch import Batch
from raymq.storage.records.byte_rows import Int64s
from raymq.storage.records.compiled import Kernels
from raymq.storage.records.indexed_properties import find
from raymq.storage.records.java_hash import index_hashes, prefix_hash, tags_codes

#: For how many keys of a record there is room at first.
_KEYS_A_RECORD: Final = 4


@dataclass(frozen=True, slots=True)
class Derived:
    """Of each record its tags code, and in log order the index hashes of all keys with their records' numbers."""

    tags_codes: Int64s
    key_hashes: npt.NDArray[np.int32]
    key_owners: Int64s

    def without(self, unwanted: npt.NDArray[np.bool_]) -> Derived:
        """The same without the keys of some records."""
        kept = ~unwanted[self.key_owners]
        return Derived(self.tags_codes, self.key_hashes[kept], self.key_owners[kept])


def derive(batch: Batch) -> Derived:
    """See `Derived`."""
    if compiled.kernels is not None and len({group.topic for group in batch.groups}) == 1:
        found = _compiled(compiled.kernels, batch)
        if found is not None:
            return found
    return _of_any(batch)


def _compiled(kernels: Kernels, batch: Batch) -> Derived | None:
    """None if a key or tag is not ASCII, or the keys are many."""
    codes = np.empty(len(batch), np.int64)
    hashes = np.empty(_KEYS_A_RECORD * len(batch), np.int32)
    owners = np.empty(len(hashes), np.int64)
    topic_hash = prefix_hash(batch.groups[0].topic)
    count = kernels.derive(batch.records, batch.properties_at, batch.ends, topic_hash, codes, hashes, owners)
    return None if count < 0 else Derived(codes, hashes[:count], owners[:count])


def _of_any(batch: Batch) -> Derived:
    found = find(batch.records, batch.properties_at, batch.ends)
    codes = np.zeros(len(batch), np.int64)
    if len(found.tags):
        codes[found.tags.owners] = tags_codes(batch.records, found.tags.starts, found.tags.ends)
    keys = found.keys
    if not len(keys):
        return Derived(codes, np.empty(0, np.int32), np.empty(0, np.int64))
    prefixes = np.empty(len(batch), np.uint32)
    for group in batch.groups:
        prefixes[slice(None) if group.members is None else group.members] = prefix_hash(group.topic)
    return Derived(codes, index_hashes(prefixes[keys.owners], batch.records, keys.starts, keys.ends), keys.owners)
