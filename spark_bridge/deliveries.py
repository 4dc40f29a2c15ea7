"""When the rows of a write are delivered: columns of times and of delay levels, as the messages' properties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raymq.client.arguments import TIME
from raymq.client.errors import InvalidInput
from raymq.client.timestamps import due
from raymq.storage.records import limits
from raymq.storage.records import property_names as names

Int64s = npt.NDArray[np.int64]

#: What a row waits for: nothing, a time of its own, or the delay level of that number.
AT_ONCE: Final = 0
AT_A_TIME: Final = -1

#: Behind every time that is checked: what is clipped to it is refused.
_MOST_MS: Final = 10**17
_US_A_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Of each row what it waits for, and the property that says so, as it is stored ("" for none)."""

    waits: Int64s
    texts: pa.Array

    @property
    def are_all_at_once(self) -> bool:
        """Whether nothing waits."""
        return not self.waits.any()


def deliveries(table: pa.Table, deliver_at: str | None, delay_level: str | None) -> Deliveries:
    """What the rows of `table` wait for by these columns; null is at once.

    Raises:
        InvalidInput: a time or a level that cannot be, or a row that names both.
    """
    waits = np.zeros(table.num_rows, np.int64)
    texts = pa.repeat("", table.num_rows)
    if delay_level is not None:
        levels = pc.fill_null(table.column(delay_level).combine_chunks().cast(pa.int64()), 0)
        waits = np.array(levels)
        if len(waits) and int(waits.min()) < 0:
            raise InvalidInput("delay_level", limits.DELAY_LEVEL, int(waits.min()))
        texts = _pairs(names.DELAY, levels, waits > 0)
    if deliver_at is not None:
        column = table.column(deliver_at).combine_chunks()
        named = ~np.asarray(column.is_null())
        if (both := named & (waits > 0)).any():
            raise InvalidInput("deliver_at", limits.DELIVER_AT, column[int(np.flatnonzero(both)[0])].as_py())
        waits[named] = AT_A_TIME
        texts = pc.if_else(pa.array(named), _pairs(names.TIMER_DELIVER_MS, pa.array(_due_ms(column)), named), texts)
    return Deliveries(waits, texts)


def _pairs(name: str, numbers: pa.Array, wanted: npt.NDArray[np.bool_]) -> pa.Array:
    values = pc.if_else(pa.array(wanted), numbers.cast(pa.string()), pa.scalar(None, pa.string()))
    return pc.binary_join_element_wise(name + "\x01", values, "\x02", "").fill_null("")


def _due_ms(column: pa.Array) -> Int64s:
    """The first millisecond that is not before each time; 0 for null."""
    if pa.types.is_timestamp(column.type):
        micros = np.asarray(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).fill_null(0))
        due_ms: Int64s = -(-micros // _US_A_MS)
    else:
        seconds = np.asarray(column.cast(pa.float64()).fill_null(0.0))
        if not np.isfinite(seconds).all():
            raise InvalidInput("deliver_at", TIME, float(seconds[~np.isfinite(seconds)][0]))
        due_ms = np.ceil(np.clip(seconds, -1.0, _MOST_MS) * 1_000).clip(-1, _MOST_MS).astype(np.int64)
    if len(due_ms):
        for worst in (int(due_ms.argmin()), int(due_ms.argmax())):
            due("deliver_at", due_ms[worst] / 1_000)
    return due_ms
