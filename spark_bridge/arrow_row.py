"""A body that is an Arrow stream of one row, from whoever sent it: checked before anything in it is followed."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

#: A stream has at most as many values as bytes, or so many if it is shorter: a list of nulls needs no bytes at all, and
#: each of them would become a Python object.
MOST_VALUES_OF_SHORT: Final = 1 << 20


def row_of_stream(body: bytes) -> dict[str, Any]:
    """The one row of the Arrow stream `body`.

    Raises:
        ValueError, pa.ArrowException: it is no such stream, does not keep Arrow's rules (offsets that lead out of
            their buffers, text that is not UTF-8), has another number of rows than one or too many values.
    """
    with pa.ipc.open_stream(body) as reader:
        table = reader.read_all()
    if table.num_rows != 1:
        raise ValueError(f"one message is one row, not {table.num_rows}")
    table.validate(full=True)  # Arrow believes the offsets that it reads, wherever they lead
    values = sum(_values(chunk) for column in table.columns for chunk in column.chunks)
    most = max(len(body), MOST_VALUES_OF_SHORT)
    if values > most:
        raise ValueError(f"at most {most} values, not {values}")
    row: dict[str, Any] = table.to_pylist()[0]
    return row


def _values(array: pa.Array) -> int:
    """How many values `array` has at all depths; ValueError for a type of which bytes may count many times."""
    kind = array.type
    if pa.types.is_struct(kind):
        return len(array) + sum(_values(array.field(index)) for index in range(kind.num_fields))
    if pa.types.is_map(kind):
        return len(array) + _values(array.keys) + _values(array.items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return len(array) + _values(array.values)
    if pa.types.is_dictionary(kind) and len(array) == 1:
        return 1 + _values(array.dictionary)
    if pa.types.is_nested(kind) or pa.types.is_dictionary(kind) or not _is_counted_once(kind):
        raise ValueError(f"no {kind} in a message")
    return len(array)


def _is_counted_once(kind: pa.DataType) -> bool:
    """Whether each value of a flat type has bytes of its own; views may share theirs."""
    of_bytes = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    flat = (pa.types.is_null, pa.types.is_primitive, pa.types.is_decimal, pa.types.is_fixed_size_binary)
    return any(check(kind) for check in (*of_bytes, *flat))
