"""The properties of records whose tails are alike, as Arrow columns: they stand in the same places of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from raymq.storage import properties as names
from raymq.storage.tails import Columns, Tails


@dataclass(frozen=True, slots=True)
class AlikeProperties:
    """What `PropertyColumns` gives, of records that all have the same properties, each once; see `alike_properties`."""

    tails: Tails
    values: dict[str, Columns]

    def has(self, name: str) -> bool:
        """Whether the records have a property of this name."""
        return name in self.values

    def first(self, name: str) -> pa.Array:
        """The value under `name` for each record, or null."""
        if name not in self.values:
            return pa.nulls(len(self.tails.rows), pa.string())
        return self._strings([self.values[name]])

    last = first

    def user(self) -> pa.Array:
        """map<string, string> of the properties that are the user's."""
        count = len(self.tails.rows)
        mine = [name for name in self.values if name not in names.SYSTEM_PROPERTIES]
        keys = pa.array(mine, pa.string()).take(pa.array(np.tile(np.arange(len(mine)), count)))
        offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(mine))
        return pa.MapArray.from_arrays(pa.array(offsets), keys, self._strings([self.values[name] for name in mine]))

    def keys(self) -> pa.Array:
        """list<string> of the one key in KEYS, empty without."""
        columns = [self.values[names.KEYS]] if names.KEYS in self.values else []
        offsets = np.arange(len(self.tails.rows) + 1, dtype=np.int32) * np.int32(len(columns))
        return pa.ListArray.from_arrays(pa.array(offsets), self._strings(columns))

    def _strings(self, columns: Sequence[Columns]) -> pa.Array:
        """What stands in these columns of each record, record by record."""
        rows = self.tails.rows
        if not columns:
            return pa.array([], pa.string())
        lengths = [end - begin for begin, end in columns]
        offsets = np.zeros((len(rows), len(columns)), np.int64)
        offsets += np.cumsum(lengths)
        offsets += (np.arange(len(rows)) * sum(lengths))[:, None]
        pieces = [rows[:, begin:end] for begin, end in columns]
        data = np.ascontiguousarray(pieces[0]) if len(pieces) == 1 else np.concatenate(pieces, axis=1)
        ends = np.zeros(offsets.size + 1, np.int32)
        ends[1:] = offsets.ravel()
        return pa.StringArray.from_buffers(offsets.size, pa.py_buffer(ends), pa.py_buffer(data))


def alike_properties(tails: Tails) -> AlikeProperties | None:
    """The properties of these tails; None if they are not plain ASCII, so that somebody else has to repair them."""
    used = tails.rows[:, -tails.properties_bytes :] if tails.properties_bytes else tails.rows[:, :0]
    if used.size and int(used.max()) >= 0x80:
        return None
    return AlikeProperties(tails, {name.decode("ascii"): columns for name, columns in tails.values.items()})
