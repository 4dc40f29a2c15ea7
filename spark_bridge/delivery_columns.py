"""Convert the columns of delivery times and delay levels of a write to message properties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raymq.client.arguments import TIME
from raymq.client.errors import InvalidInput
from raymq.client.timestamps import checked_due_time
from raymq.storage.records import message_limits
from raymq.storage.records import property_names as names

Int64s = npt.NDArray[np.int64]

#: The delay of a row: none, or a delivery time of its own; a positive number is a delay level.
NO_DELAY: Final = 0
TIMED: Final = -1

#: Later than every valid time: a time that is clipped to this value is refused.
_MAX_MS: Final = 10**17
_US_A_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class DeliveryTimes:
    """The delay of each row, and the property that encodes it ("" for none)."""

    waits: Int64s
    texts: pa.Array


def delivery_times(table: pa.Table, deliver_at: str | None, delay_level: str | None) -> DeliveryTimes:
    """Return the delays of the rows of `table` by these columns; null means no delay.

    Raises:
        InvalidInput: a time or a level is invalid, or a row has both.
    """
    waits = np.zeros(table.num_rows, np.int64)
    texts = pa.repeat("", table.num_rows)
    if delay_level is not None:
        levels = pc.fill_null(table.column(delay_level).combine_chunks().cast(pa.int64()), 0)
        waits = np.array(levels)
        if len(waits) and int(waits.min()) < 0:
            raise InvalidInput("delay_level", message_limits.DELAY_LEVEL, int(waits.min()))
        texts = _pairs(names.DELAY, levels, waits > 0)
    if deliver_at is not None:
        column = table.column(deliver_at).combine_chunks()
        named = ~np.asarray(column.is_null())
        if (both := named & (waits > 0)).any():
            raise InvalidInput("deliver_at", message_limits.DELIVER_AT, column[int(np.flatnonzero(both)[0])].as_py())
        waits[named] = TIMED
        texts = pc.if_else(pa.array(named), _pairs(names.TIMER_DELIVER_MS, pa.array(_due_ms(column)), named), texts)
    return DeliveryTimes(waits, texts)


def _pairs(name: str, numbers: pa.Array, wanted: npt.NDArray[np.bool_]) -> pa.Array:
    values = pc.if_else(pa.array(wanted), numbers.cast(pa.string()), pa.scalar(None, pa.string()))
    return pc.binary_join_element_wise(name + "\x01", values, "\x02", "").fill_null("")


def _due_ms(column: pa.Array) -> Int64s:
    """Return each time in milliseconds, rounded up; 0 for null."""
    if pa.types.is_timestamp(column.type):
        micros = np.asarray(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).fill_null(0))
        due_ms: Int64s = -(-micros // _US_A_MS)
    else:
        seconds = np.asarray(column.cast(pa.float64()).fill_null(0.0))
        if not np.isfinite(seconds).all():
            raise InvalidInput("deliver_at", TIME, float(seconds[~np.isfinite(seconds)][0]))
        due_ms = np.ceil(np.clip(seconds, -1.0, _MAX_MS) * 1_000).clip(-1, _MAX_MS).astype(np.int64)
    if len(due_ms):
        for worst in (int(due_ms.argmin()), int(due_ms.argmax())):
            checked_due_time("deliver_at", due_ms[worst] / 1_000)
    return due_ms
