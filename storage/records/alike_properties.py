"""The properties of records that all have the same ones in the same order, as Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from raymq.storage.records import compiled
from raymq.storage.records import property_names as names
from raymq.storage.records.batch import Batch
from raymq.storage.records.compiled import Kernels
from raymq.storage.records.property_columns import gather
from raymq.storage.records.tails import Tails


@dataclass(frozen=True, slots=True)
class AlikeProperties:
    """What `PropertyColumns` gives, of records that all have the properties `names`, each once; see `alike_properties`.

    Attributes:
        strings: the values under one name or several, record by record, as an array of strings.
    """

    count: int
    names: Sequence[str]
    strings: Callable[[Sequence[str]], pa.Array]

    def has(self, name: str) -> bool:
        """Whether the records have a property of this name."""
        return name in self.names

    def first(self, name: str) -> pa.Array:
        """The value under `name` for each record, or null."""
        return self.strings([name]) if name in self.names else pa.nulls(self.count, pa.string())

    last = first

    def user(self) -> pa.Array:
        """map<string, string> of the properties that are the user's."""
        mine = [name for name in self.names if name not in names.SYSTEM_PROPERTIES]
        offsets, values = self._lists(mine)
        keys = pa.array(mine, pa.string()).take(pa.array(np.tile(np.arange(len(mine)), self.count))) if mine else values
        return pa.MapArray.from_arrays(offsets, keys, values)

    def keys(self) -> pa.Array:
        """list<string> of the one key in KEYS, empty without."""
        return pa.ListArray.from_arrays(*self._lists([names.KEYS] if self.has(names.KEYS) else []))

    def _lists(self, chosen: Sequence[str]) -> tuple[pa.Array, pa.Array]:
        offsets = np.arange(self.count + 1, dtype=np.int32) * np.int32(len(chosen))
        return pa.array(offsets), self.strings(chosen) if chosen else pa.array([], pa.string())


def alike_properties(batch: Batch) -> AlikeProperties | None:
    """The properties of these records; None if they are not alike, or not plain ASCII so that they must be repaired."""
    if compiled.kernels is not None:
        found = _compiled(compiled.kernels, batch)
        if found is not None:
            return found
    return None if batch.tails is None else _of_tails(batch.tails)


def _compiled(kernels: Kernels, batch: Batch) -> AlikeProperties | None:
    """None also if there may be several keys in KEYS."""
    begin, end = int(batch.properties_at[0]), int(batch.ends[0])
    pairs = bytes(batch.records[begin:end]).split(b"\x02")[:-1]
    told = [pair.partition(b"\x01")[0] for pair in pairs]
    begins = np.empty((len(told), len(batch)), np.int64)
    stops = np.empty_like(begins)
    marked = [name + b"\x01" for name in told]
    if len(set(told)) < len(told) or not all(told) or not b"".join(told).isascii():
        return None
    if not kernels.common_properties(batch.records, batch.properties_at, batch.ends, marked, begins, stops):
        return None
    block = pa.py_buffer(batch.records)
    rows = {name.decode("ascii"): number for number, name in enumerate(told)}

    def strings(chosen: Sequence[str]) -> pa.Array:
        numbers = [rows[name] for name in chosen]
        return gather(block, begins[numbers].T.ravel(), stops[numbers].T.ravel(), pa.string())

    if names.KEYS in rows and names.KEY_SEPARATOR.encode() in memoryview(strings([names.KEYS]).buffers()[2]).tobytes():
        return None
    return AlikeProperties(len(batch), list(rows), strings)


def _of_tails(tails: Tails) -> AlikeProperties | None:
    rows = tails.rows
    used = rows[:, -tails.properties_bytes :] if tails.properties_bytes else rows[:, :0]
    if used.size and int(used.max()) >= 0x80:
        return None
    values = {name.decode("ascii"): columns for name, columns in tails.values.items()}

    def strings(chosen: Sequence[str]) -> pa.Array:
        columns = [values[name] for name in chosen]
        lengths = [end - begin for begin, end in columns]
        offsets = np.zeros((len(rows), len(columns)), np.int64)
        offsets += np.cumsum(lengths)
        offsets += (np.arange(len(rows)) * sum(lengths))[:, None]
        pieces = [rows[:, begin:end] for begin, end in columns]
        data = np.ascontiguousarray(pieces[0]) if len(pieces) == 1 else np.concatenate(pieces, axis=1)
        ends = np.zeros(offsets.size + 1, np.int32)
        ends[1:] = offsets.ravel()
        return pa.StringArray.from_buffers(offsets.size, pa.py_buffer(ends), pa.py_buffer(data))

    return AlikeProperties(len(rows), list(values), strings)
