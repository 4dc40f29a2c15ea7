"""Decode many message bodies, each an Arrow stream of one row, together.

Bodies with the same Arrow schema become one table, without a Python object for each value. Only bodies with flat
columns are decoded here, and only if their types are those of the target schema already. All other bodies are left to
`decode_arrow_row`, which decodes one body at a time, is slow and strict. For the bodies that are decoded here both ways
give the same values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raymq.client.arrow_body import is_compressed

#: The number of different schemas that are kept; bodies with further schemas are decoded one by one.
_MAX_KINDS: Final = 64
#: The range of Python's datetime and date, in microseconds and days since the epoch; the conversion one by one has it.
_YEARS_US: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_YEARS_DAYS: Final = (-719_162, 2_932_896)


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """Rows that were decoded together: their row numbers and their values."""

    rows: npt.NDArray[np.int64]
    values: pa.StructArray


class ArrowBatchDecoder:
    """A decoder of bodies into one struct type, for use by one thread."""

    def __init__(self, kind: pa.StructType) -> None:
        self._kind = kind
        #: Schemas by the first message of a stream, which encodes the schema. None: these streams are decoded one by
        #: one.
        self._schemas: dict[bytes, pa.Schema | None] = {}

    def decode(self, bodies: pa.Array) -> tuple[list[DecodedBatch], npt.NDArray[np.int64]]:
        """Return the bodies that can be decoded together, and the row numbers of the others."""
        found: dict[bytes, tuple[list[int], list[pa.RecordBatch]]] = {}
        for row, body in enumerate(bodies):
            try:
                begin, batch = self._batch(body.as_buffer())
            except Exception:  # noqa: BLE001 - bytes from any sender; errors are reported one by one
                begin, batch = b"", None
            if batch is not None:
                rows, batches = found.setdefault(begin, ([], []))
                rows.append(row)
                batches.append(batch)
        taken = []
        undecoded = np.ones(len(bodies), bool)
        for rows, batches in found.values():
            values = self._values(batches)
            if values is not None:
                numbers = np.array(rows, np.int64)
                undecoded[numbers] = False
                taken.append(DecodedBatch(numbers, values))
        return taken, np.flatnonzero(undecoded)

    def _batch(self, body: pa.Buffer) -> tuple[bytes, pa.RecordBatch | None]:
        """Return the encoded schema of a stream and the batch of its one row.

        The batch is None if the stream must be decoded on its own.
        """
        messages = pa.ipc.MessageReader.open_stream(body)
        first = messages.read_next_message()
        begin = bytes(first.metadata)
        if begin not in self._schemas and len(self._schemas) < _MAX_KINDS:
            schema = pa.ipc.read_schema(first)
            self._schemas[begin] = schema if self._takes(schema) else None
        schema = self._schemas.get(begin)
        if schema is None:
            return begin, None
        second = messages.read_next_message()
        if second.type != "record batch" or is_compressed(second) or not _ends(messages):
            return begin, None
        batch = pa.ipc.read_record_batch(second, schema)
        return begin, batch if batch.num_rows == 1 else None

    def _takes(self, schema: pa.Schema) -> bool:
        """Return True if all columns are flat and the target columns have the target types."""
        expected = {field.name: field.type for field in self._kind}
        return len(set(schema.names)) == len(schema) and all(
            _is_flat(field.type) and expected.get(field.name, field.type) == field.type for field in schema
        )

    def _values(self, batches: list[pa.RecordBatch]) -> pa.StructArray | None:
        """Convert one-row batches of one schema to values.

        Return None if a batch violates Arrow's rules, or has a time outside the years 1 to 9999.
        """
        table = pa.Table.from_batches(batches)
        try:
            # Arrow does not check offsets when it reads them; they may lie outside the buffers.
            table.validate(full=True)
        except pa.ArrowException:
            return None
        columns = []
        for field in self._kind:
            if field.name not in table.column_names:
                columns.append(pa.nulls(len(table), field.type))
                continue
            column = table.column(field.name).combine_chunks()
            if not _are_within_years(column):
                return None
            columns.append(column)
        return pa.StructArray.from_arrays(columns, fields=list(self._kind))


def _ends(messages: pa.ipc.MessageReader) -> bool:
    """Return True if no message follows."""
    try:
        messages.read_next_message()
    except StopIteration:
        return True
    return False


def _is_flat(kind: pa.DataType) -> bool:
    """Return True if values of the type are scalars with bytes of their own."""
    checks = (
        *(pa.types.is_boolean, pa.types.is_integer, pa.types.is_float32, pa.types.is_float64, pa.types.is_string),
        *(pa.types.is_binary, pa.types.is_date32, pa.types.is_timestamp, pa.types.is_decimal128),
    )
    return any(check(kind) for check in checks)


def _are_within_years(column: pa.Array) -> bool:
    """Return True if all times of the column are in the years 1 to 9999."""
    if pa.types.is_timestamp(column.type):
        least, most = _YEARS_US
        numbers = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    elif pa.types.is_date32(column.type):
        least, most = _YEARS_DAYS
        numbers = column.cast(pa.int32())
    else:
        return True
    bounds = pc.min_max(numbers).as_py()
    return bounds["min"] is None or least <= bounds["min"] <= bounds["max"] <= most
