"""Arrow columns of properties that are the same, in the same order, in all records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from raymq.storage.records import native_kernels
from raymq.storage.records import property_names as names
from raymq.storage.records.property_columns import gather
from raymq.storage.records.record_batch import Batch


@dataclass(frozen=True, slots=True)
class UniformProperties:
    """The properties of records that all have the properties `names`, each once.

    It has the methods of `PropertyColumns`. See `alike_properties`.

    Attributes:
        strings: a function that returns the values under one name or several, record by record, as an array of strings.
    """

    count: int
    names: Sequence[str]
    strings: Callable[[Sequence[str]], pa.Array]

    def has(self, name: str) -> bool:
        """Return True if the records have a property of this name."""
        return name in self.names

    def first(self, name: str) -> pa.Array:
        """Return the value of `name` for each record, or null."""
        return self.strings([name]) if name in self.names else pa.nulls(self.count, pa.string())

    last = first

    def user(self) -> pa.Array:
        """Return the user's properties as map<string, string>."""
        mine = [name for name in self.names if name not in names.SYSTEM_PROPERTIES]
        offsets, values = self._lists(mine)
        keys = pa.array(mine, pa.string()).take(pa.array(np.tile(np.arange(len(mine)), self.count))) if mine else values
        return pa.MapArray.from_arrays(offsets, keys, values)

    def keys(self) -> pa.Array:
        """Return the one key in KEYS as list<string>, empty without KEYS."""
        return pa.ListArray.from_arrays(*self._lists([names.KEYS] if self.has(names.KEYS) else []))

    def _lists(self, chosen: Sequence[str]) -> tuple[pa.Array, pa.Array]:
        offsets = np.arange(self.count + 1, dtype=np.int32) * np.int32(len(chosen))
        return pa.array(offsets), self.strings(chosen) if chosen else pa.array([], pa.string())


def alike_properties(batch: Batch) -> UniformProperties | None:
    """Return the properties of records that are alike, found with compiled code.

    Return None if there is no compiled code, or if the properties are not alike, not plain ASCII, or KEYS may have
    several keys.
    """
    kernels = native_kernels.kernels
    if kernels is None:
        return None
    begin, end = int(batch.properties_at[0]), int(batch.ends[0])
    pairs = bytes(batch.records[begin:end]).split(b"\x02")[:-1]
    keys = [pair.partition(b"\x01")[0] for pair in pairs]
    begins = np.empty((len(keys), len(batch)), np.int64)
    stops = np.empty_like(begins)
    marked = [name + b"\x01" for name in keys]
    if len(set(keys)) < len(keys) or not all(keys) or not b"".join(keys).isascii():
        return None
    if not kernels.common_properties(batch.records, batch.properties_at, batch.ends, marked, begins, stops):
        return None
    block = pa.py_buffer(batch.records)
    rows = {name.decode("ascii"): number for number, name in enumerate(keys)}

    def strings(chosen: Sequence[str]) -> pa.Array:
        numbers = [rows[name] for name in chosen]
        return gather(block, begins[numbers].T.ravel(), stops[numbers].T.ravel(), pa.string())

    if names.KEYS in rows and names.KEY_SEPARATOR.encode() in memoryview(strings([names.KEYS]).buffers()[2]).tobytes():
        return None
    return UniformProperties(len(batch), list(rows), strings)
