"""Convert records to Arrow tables and back, thousands at a time.

`fetch_table`, `send_table` and Spark use these tables. No function takes a Python step per message, with two
exceptions: compressed bodies are decompressed one by one, and a struct column is packed into bodies one by one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raymq.storage.errors import InvalidInput, StoreCorrupt
from raymq.storage.records import message_limits, native_kernels, record, record_batch
from raymq.storage.records import property_names as properties
from raymq.storage.records.body_compression import decompress_or_raw
from raymq.storage.records.columnar_encoder import join_records, lengths_of
from raymq.storage.records.header_columns import TIMESTAMP, head_columns
from raymq.storage.records.property_columns import gather_bodies, properties_of_batch
from raymq.storage.records.record import Buffer
from raymq.storage.records.uniform_properties import alike_properties
from raymq.storage.records.unique_key_generator import PAIR_BYTES, UniqueKeyGenerator

__all__ = ["SCHEMA", "CheckedRows", "checked_rows", "records_from_table", "table_from_records", "tables_from_records"]

#: The columns of a table of messages.
SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("broker", pa.string()),
        ("queue_id", pa.int32()),
        ("offset", pa.int64()),
        ("message_id", pa.string()),
        ("unique_key", pa.string()),
        ("keys", pa.list_(pa.string())),
        ("tags", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("born_timestamp", TIMESTAMP),
        ("store_timestamp", TIMESTAMP),
        ("body", pa.binary()),
    ]
)

#: The columns that are read from the records' properties, and those from their headers.
_OF_PROPERTIES: Final = frozenset({"topic", "message_id", "unique_key", "keys", "tags", "properties"})
_OF_HEADS: Final = frozenset({"queue_id", "offset", "message_id", "born_timestamp", "store_timestamp"})

_PROPERTIES_COLUMN: Final = "a column of map<string, string>, or of a struct of strings"
CONTENT_TYPE: Final = "content-type"
MSGPACK: Final = "application/msgpack"
#: The most bytes of decompressed bodies in one table.
MAX_TABLE_BYTES: Final = 64 << 20


def table_from_records(
    records: Buffer, sizes: npt.NDArray[np.int32], *, broker: str, check_crc: bool = True
) -> pa.Table:
    """Decode contiguous records into one table of `SCHEMA`.

    The table is not limited in size, even if bodies are large when decompressed. It owns its bytes: `records` may be
    released.

    If a message was retried or dead-lettered, topic, message_id, unique key, keys, tags, properties and born timestamp
    are those of the original message; queue, offset and store timestamp are those of this copy. Compressed bodies are
    decompressed.

    Raises:
        StoreCorrupt: a record is not valid or its body has another CRC; `.file` is the broker, `.offset` the position
            in `records`.
    """
    tables = tables_from_records(records, sizes, broker=broker, check_crc=check_crc, most_bytes=math.inf)
    return next(tables, SCHEMA.empty_table())


def tables_from_records(
    records: Buffer,
    sizes: npt.NDArray[np.int32],
    *,
    broker: str,
    check_crc: bool = True,
    most_bytes: float = MAX_TABLE_BYTES,
    columns: Collection[str] | None = None,
) -> Iterator[pa.Table]:
    """Decode contiguous records into tables of at most `most_bytes` of bodies, lazily.

    Each table is as in `table_from_records` and is made when the caller requests it. With `columns`, a table has only
    these columns, in the order of `SCHEMA`; if the body is not among them, no body is read.

    The limit matters because bodies of a few compressed bytes may be megabytes each. A table has at least one row. If
    no body is compressed, there is one table.
    """
    if len(sizes) == 0:
        return
    schema = SCHEMA if columns is None else pa.schema([field for field in SCHEMA if field.name in columns])
    check_crc = check_crc and "body" in schema.names
    try:
        batch = record_batch.parse(records, sizes, check_crc=check_crc and native_kernels.kernels is None)
        if "body" not in schema.names:
            yield _table(batch, None, broker, schema)
            return
        bodies = gather_bodies(batch, check_crc=check_crc and native_kernels.kernels is not None)
    except record_batch.BadRecord as error:
        place = int(np.sum(np.asarray(sizes)[: error.index], dtype=np.int64))
        raise StoreCorrupt(broker, place, f"{error.reason}: {error.actual}") from None
    stored = _table(batch, bodies, broker, schema)
    if not batch.any_flags & record.SYS_FLAG_COMPRESSED:
        yield stored
        return
    first, column = 0, schema.get_field_index("body")
    for plain in _plain(batch, bodies, most_bytes):
        yield stored.slice(first, len(plain)).set_column(column, schema.field(column), plain)
        first += len(plain)


def _table(batch: record_batch.Batch, bodies: pa.Array | None, broker: str, schema: pa.Schema) -> pa.Table:
    """Return a table with the columns of `schema`; `bodies` are as stored."""
    count = len(batch)
    needs_properties = not _OF_PROPERTIES.isdisjoint(schema.names)
    parsed = (alike_properties(batch) or properties_of_batch(batch)) if needs_properties else None
    needs_heads = not _OF_HEADS.isdisjoint(schema.names)
    heads = head_columns(batch) if needs_heads else None

    def of_original(name: str, own: pa.Array) -> pa.Array:
        assert parsed is not None
        return pc.coalesce(parsed.last(name), own) if parsed.has(name) else own

    builders: dict[str, Callable[[Any, Any], pa.Array]] = {
        "topic": lambda _, __: of_original(properties.RETRY_TOPIC, _topics(batch)),
        "broker": lambda _, __: pa.repeat(broker, count),
        "queue_id": lambda heads, _: heads.queue_id,
        "offset": lambda heads, _: heads.offset,
        "message_id": lambda heads, _: of_original(properties.ORIGIN_MESSAGE_ID, heads.message_id),
        "unique_key": lambda _, parsed: parsed.first(properties.UNIQ_KEY),
        "keys": lambda _, parsed: parsed.keys(),
        "tags": lambda _, parsed: parsed.last(properties.TAGS),
        "properties": lambda _, parsed: parsed.user(),
        "born_timestamp": lambda heads, _: heads.born_timestamp,
        "store_timestamp": lambda heads, _: heads.store_timestamp,
        "body": lambda _, __: bodies,
    }
    return pa.Table.from_arrays([builders[name](heads, parsed) for name in schema.names], schema=schema)


def records_from_table(
    table: pa.Table,
    *,
    topic: str,
    queue_id: int,
    body: str,
    unique_keys: UniqueKeyGenerator,
    keys: str | None = None,
    tags: str | None = None,
    properties: str | None = None,
    content_type: str | None = None,
    born_host: tuple[str, int] = ("127.0.0.1", 0),
    born_timestamp_ms: int | None = None,
    max_body_bytes: int = message_limits.MAX_MESSAGE_BYTES,
) -> tuple[bytearray, npt.NDArray[np.int32]]:
    """Encode the rows of a table as records of one queue; return (records, sizes).

    The records are ready for `Store.append`.

    Args:
        body: the column of bodies: binary, string, or struct (packed as msgpack, content type application/msgpack).
        unique_keys: generates the UNIQ_KEY of every row.
        keys: the column of keys: one a row (string, integer) or several (list of them).
        tags: the column of tags.
        properties: the column of the user's own properties, map<string, string>; null values are left out.
        content_type: the value of the property content-type; None leaves it out unless `body` is a struct.
        born_host: the sender's address (IPv4) and port.
        born_timestamp_ms: now if None.

    The properties are written in the order UNIQ_KEY, content-type, the user's, KEYS, TAGS.

    Raises:
        InvalidInput: a limit is broken (body 1 byte to `max_body_bytes`, properties 32,767 bytes, separators, blanks in
            keys, reserved names), a column is missing or of another type. No record was made.
    """
    rows = checked_rows(
        table,
        body=body,
        keys=keys,
        tags=tags,
        properties=properties,
        content_type=content_type,
        max_body_bytes=max_body_bytes,
    )
    return rows.encode(
        topic, queue_id, unique_keys=unique_keys, born_host=born_host, born_timestamp_ms=born_timestamp_ms
    )


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """Rows of a table that satisfy all rules of messages, ready to be encoded.

    `bodies` is binary without nulls. `texts` holds the properties after the unique key: an array with one value per
    row, a scalar for all rows, or None for no properties.
    """

    bodies: pa.Array
    texts: pa.Array | pa.Scalar | None

    @property
    def longest_body(self) -> int:
        """Return the length of the longest body in bytes; 0 without rows."""
        return int(lengths_of(self.bodies).max()) if len(self.bodies) else 0

    def slice(self, start: int, stop: int) -> CheckedRows:
        """Return the rows from `start` to `stop` (not included), without a copy."""
        count = stop - start
        texts = self.texts.slice(start, count) if isinstance(self.texts, pa.Array) else self.texts
        return CheckedRows(self.bodies.slice(start, count), texts)

    def take(self, indices: npt.NDArray[np.int64]) -> CheckedRows:
        """Return a copy of the rows with these indices, in that order."""
        chosen = pa.array(indices)
        texts = self.texts.take(chosen) if isinstance(self.texts, pa.Array) else self.texts
        return CheckedRows(self.bodies.take(chosen), texts)

    def with_properties(self, more: pa.Array) -> CheckedRows:
        """Return the rows with additional properties, given as they are stored.

        An empty text adds no property.

        Raises:
            InvalidInput: a row's properties become too long.
        """
        before = pa.scalar(b"") if self.texts is None else self.texts
        return CheckedRows(
            self.bodies, _checked_texts(pc.binary_join_element_wise(before, more.cast(pa.binary()), b""))
        )

    def with_common(self, more: bytes) -> CheckedRows:
        """Return the rows with additional properties of all rows, given as they are stored.

        If that left too little room for the properties of later copies of a row, return the rows unchanged.
        """
        most = message_limits.MAX_PROPERTIES_BYTES - message_limits.COPIES_ROOM_BYTES - PAIR_BYTES - len(more)
        if not isinstance(self.texts, pa.Array):
            before = b"" if self.texts is None else self.texts.as_py()
            return self if len(before) > most else CheckedRows(self.bodies, pa.scalar(before + more, pa.binary()))
        if len(self.texts) and int(lengths_of(self.texts).max()) > most:
            return self
        texts = pc.binary_join_element_wise(self.texts.cast(pa.binary()), pa.scalar(more, pa.binary()), b"")
        return CheckedRows(self.bodies, texts)

    @staticmethod
    def concatenated(parts: Sequence[CheckedRows]) -> CheckedRows:
        """Concatenate the rows of several tables that have the same columns."""
        first = parts[0]
        if len(parts) == 1:
            return first
        texts = first.texts
        if isinstance(texts, pa.Array):
            texts = pa.concat_arrays([part.texts for part in parts])
        return CheckedRows(pa.concat_arrays([part.bodies for part in parts]), texts)

    def record_sizes(self, topic: str) -> npt.NDArray[np.int64]:
        """Return the size in bytes of each row's record."""
        sizes = lengths_of(self.bodies) + (record.MIN_RECORD_BYTES + len(topic) + PAIR_BYTES)
        if isinstance(self.texts, pa.Array):
            sizes += lengths_of(self.texts)
        elif self.texts is not None:
            sizes += len(self.texts.as_py())
        return sizes

    def encode(
        self,
        topic: str,
        queue_id: int,
        *,
        unique_keys: UniqueKeyGenerator,
        born_host: tuple[str, int],
        born_timestamp_ms: int | None = None,
    ) -> tuple[bytearray, npt.NDArray[np.int32]]:
        """Encode the rows and return the records and their sizes; see `records_from_table`."""
        count, texts = len(self.bodies), self.texts
        return join_records(
            topic,
            queue_id,
            self.bodies,
            pa.repeat(texts, count) if isinstance(texts, pa.Scalar) else texts,
            keys=(unique_keys, unique_keys.numbers(count)),
            born_host=record.pack_host(*born_host),
            born_timestamp_ms=time.time_ns() // 1_000_000 if born_timestamp_ms is None else born_timestamp_ms,
        )


def checked_rows(
    table: pa.Table,
    *,
    body: str,
    keys: str | None = None,
    tags: str | None = None,
    properties: str | None = None,
    content_type: str | None = None,
    max_body_bytes: int = message_limits.MAX_MESSAGE_BYTES,
) -> CheckedRows:
    """Check every row of a table and prepare its encoding.

    The arguments are those of `records_from_table`.

    Raises:
        InvalidInput: as `records_from_table`.
    """
    column = _column(table, "body", body)
    if pa.types.is_struct(column.type):
        content_type = content_type or MSGPACK
        column = _packed(column)
    bodies = _checked_bodies(column, max_body_bytes)
    texts = _property_texts(
        _key_texts(None if keys is None else _column(table, "keys", keys)),
        None if tags is None else _tag_texts(_column(table, "tags", tags)),
        content_type,
        None if properties is None else _column(table, "properties", properties),
    )
    return CheckedRows(bodies, _checked_texts(texts) if isinstance(texts, pa.Array) else texts)


def _checked_texts(texts: pa.Array) -> pa.Array:
    """Return the properties of each row.

    Raise InvalidInput if those of a row are too long.
    """
    longest = int(lengths_of(texts).max()) + PAIR_BYTES if len(texts) else 0
    if longest > message_limits.MAX_PROPERTIES_BYTES:
        raise InvalidInput("properties", message_limits.PROPERTIES, longest)
    return texts


def _topics(batch: record_batch.Batch) -> pa.Array:
    if len(batch.groups) == 1:
        return pa.repeat(batch.groups[0].topic, len(batch))
    codes = np.zeros(len(batch), np.int32)
    for code, group in enumerate(batch.groups):
        codes[slice(None) if group.members is None else group.members] = code
    return pa.array([group.topic for group in batch.groups]).take(pa.array(codes))


def _plain(batch: record_batch.Batch, bodies: pa.Array, most_bytes: float) -> Iterator[pa.Array]:
    """Yield the bodies, decompressed where possible, in parts of at most `most_bytes`.

    A compressed body that does not match its flag stays as stored. A part has at least one body.
    """
    compressed = (batch.sys_flags & record.SYS_FLAG_COMPRESSED) != 0
    rows, lengths = np.flatnonzero(compressed).tolist(), batch.body_lengths
    plain: list[bytes] = []
    first = 0

    def part(end: int) -> pa.Array:
        if not plain:
            return bodies.slice(first, end - first)
        mask = pa.array(compressed[first:end])
        return pc.replace_with_mask(bodies.slice(first, end - first), mask, pa.array(plain, pa.binary()))

    size = before = 0  # bytes of the part, and of the stored bodies up to the part's last row
    ends = np.cumsum(lengths, dtype=np.int64)
    for row in rows:
        body = decompress_or_raw(bodies[row].as_py(), int(batch.sys_flags[row]))
        stored = int(ends[row] - lengths[row])
        size, before = size + stored - before + len(body), int(ends[row])
        if size > most_bytes and row > first:
            yield part(row)
            plain.clear()
            first, size = row, len(body)
        plain.append(body)
    yield part(len(batch))


def _column(table: pa.Table, field: str, name: str) -> pa.Array:
    if not isinstance(name, str) or table.column_names.count(name) != 1:
        raise InvalidInput(field, f"the name of exactly one column of {table.column_names}", name)
    column = table.column(name)
    if column.num_chunks == 1:
        return _plainly_laid_out(field, column.chunk(0))
    combined = column.combine_chunks()
    return _plainly_laid_out(
        field, pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined
    )


def _plainly_laid_out(field: str, column: pa.Array) -> pa.Array:
    """Return the column in the layout that all of pyarrow's functions accept.

    Other libraries export views (polars, pandas 3), dictionaries (categories), run ends and extension types.
    """
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        return _plainly_laid_out(field, column.dictionary).take(column.indices)
    try:
        if pa.types.is_run_end_encoded(column.type):
            column = pc.run_end_decode(column)
        plain = _plain_type(column.type)
        return column if plain.equals(column.type) else column.cast(plain)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise InvalidInput(
            field, "a type that Arrow can convert to binary or text", f"{column.type} ({error})"
        ) from None


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of `_plainly_laid_out`'s result."""
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if kind.equals(pa.string_view()):
        return pa.string()
    if kind.equals(pa.binary_view()):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_plain_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    return kind


def _packed(structs: pa.Array) -> pa.Array:
    """Encode every struct as a msgpack map.

    Types that msgpack does not support (decimals, dates) become text.
    """
    pack = msgpack.Packer(datetime=True, default=str).pack
    try:
        values = structs.to_pylist()
    except (ValueError, OverflowError, KeyError):  # a time outside Python's years, or two fields of one name
        raise _beyond_python(structs) from None
    return pa.array([None if value is None else pack(value) for value in values], pa.binary())


def _beyond_python(structs: pa.Array) -> InvalidInput:
    """Return an error that names the field with a value that Python's types cannot hold."""
    for index, field in enumerate(structs.type):
        try:
            structs.field(index).to_pylist()
        except (ValueError, OverflowError, KeyError) as error:
            return InvalidInput("body", "values that a message can hold", f"{field.name}: {error}")
    return InvalidInput("body", "values that a message can hold", str(structs.type))


def _checked_bodies(column: pa.Array, limit: int) -> pa.Array:
    if pa.types.is_null(column.type) and not len(column):
        column = column.cast(pa.binary())  # without rows, pandas has no type for texts
    kind = column.type
    accepted = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    if not any(check(kind) for check in (*accepted, pa.types.is_fixed_size_binary)):
        raise InvalidInput("body", "a column of binary, string or struct", str(kind))
    if column.null_count:
        raise InvalidInput("body", "no nulls", f"{column.null_count} nulls")
    bodies = column if pa.types.is_binary(kind) else column.cast(pa.binary())
    lengths = lengths_of(bodies)
    if len(lengths) and not 0 < int(lengths.min()) <= int(lengths.max()) <= limit:
        worst = int(lengths.min() if lengths.min() == 0 else lengths.max())
        allowed = message_limits.BODY if limit == message_limits.MAX_MESSAGE_BYTES else f"1 to {limit} bytes"
        raise InvalidInput("body", allowed, worst, remedy=message_limits.ELSEWHERE if worst else None)
    return bodies


def _text(column: pa.Array, field: str) -> pa.Array:
    """Return a column as strings, with empty strings as null.

    Raise InvalidInput if a string contains a separator or the column has another type.
    """
    if pa.types.is_null(column.type):
        return column.cast(pa.string())
    if pa.types.is_integer(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.string())
    if not pa.types.is_string(column.type):
        raise InvalidInput(field, "a column of text or integers", str(column.type))
    _refuse_separators(column, field)
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)


def _refuse_separators(column: pa.Array, field: str) -> None:
    data = column.buffers()[2]
    if data is None or not len(column):
        return
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    used = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    if (used <= 2).any():
        raise InvalidInput(field, message_limits.TEXT, "one of them")


def _key_texts(column: pa.Array | None) -> pa.Array | None:
    """Return the value of KEYS for every row, or null without keys."""
    if column is None:
        return None
    if not pa.types.is_list(column.type) and not pa.types.is_large_list(column.type):
        texts = _text(column, "keys")
        _refuse_blanks(texts)
        return texts
    flat = _text(column.flatten(), "keys")
    if flat.null_count:
        raise InvalidInput("keys", message_limits.KEY, "an empty one or null")
    _refuse_blanks(flat)
    lengths = pc.list_value_length(column).fill_null(0)
    offsets = np.zeros(len(column) + 1, np.int32)
    np.cumsum(np.asarray(lengths), out=offsets[1:])
    texts = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), flat), properties.KEY_SEPARATOR)
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _tag_texts(column: pa.Array) -> pa.Array:
    texts = _text(column, "tags")
    if pc.any(pc.match_substring_regex(texts, r"\|\||^\s+$")).as_py():
        raise InvalidInput("tags", message_limits.TAG, "another")
    return texts


def _refuse_blanks(texts: pa.Array) -> None:
    if pc.any(pc.match_substring(texts, properties.KEY_SEPARATOR)).as_py():
        raise InvalidInput("keys", message_limits.KEY, "a blank")


def _property_texts(
    keys: pa.Array | None, tags: pa.Array | None, content_type: str | None, user: pa.Array | None
) -> pa.Array | pa.Scalar | None:
    """Return the properties after the unique key, binary.

    The result is an array with one value per row, a scalar for all rows, or None for no properties.
    """
    pieces = []
    if content_type is not None:
        _refuse_separators(pa.array([content_type]), "content_type")
        pieces.append(pa.scalar(f"{CONTENT_TYPE}\x01{content_type}\x02"))
    if user is not None:
        pieces.append(_user_texts(user, reserved={CONTENT_TYPE} if content_type is not None else set()))
    if keys is not None:
        pieces.append(_pairs(properties.KEYS, keys))
    if tags is not None:
        pieces.append(_pairs(properties.TAGS, tags))
    return pc.binary_join_element_wise(*pieces, "").cast(pa.binary()) if pieces else None


def _pairs(name: str, values: pa.Array) -> pa.Array:
    r"""Return `name \x01 value \x02` for each value, and an empty text for null."""
    return pc.binary_join_element_wise(name + "\x01", values, "\x02", "").fill_null("")


def _user_texts(column: pa.Array, reserved: set[str]) -> pa.Array:
    if pa.types.is_null(column.type):
        return column.cast(pa.string()).fill_null("")
    if pa.types.is_struct(column.type):  # libraries without maps use structs; fields that are null are left out
        return _struct_texts(column, reserved)
    if not pa.types.is_map(column.type):
        raise InvalidInput("properties", _PROPERTIES_COLUMN, str(column.type))
    counts = np.asarray(pc.list_value_length(column.cast(pa.list_(_entries(column.type)))).fill_null(0))
    flat: Any = column.cast(pa.list_(_entries(column.type))).flatten()
    names, values = _property_column(flat.field(0), column.type), _property_column(flat.field(1), column.type)
    _check_properties(names, values, reserved)
    pairs = pc.binary_join_element_wise(names, "\x01", values, "\x02", "").fill_null("")
    offsets = np.zeros(len(column) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), pairs), "")


def _struct_texts(column: pa.Array, reserved: set[str]) -> pa.Array:
    """Return the properties of structs: each field is one property with the field's name."""
    if not column.type.num_fields:
        return pa.repeat("", len(column))
    columns = []
    for index, field in enumerate(column.type):
        values = _property_column(_plainly_laid_out("properties", pc.struct_field(column, [index])), column.type)
        _check_properties(pa.array([field.name]), values, reserved)
        columns.append(_pairs(field.name, values))
    return pc.binary_join_element_wise(*columns, "")


def _property_column(values: pa.Array, of: pa.DataType) -> pa.Array:
    if pa.types.is_large_string(values.type) or pa.types.is_null(values.type):
        values = values.cast(pa.string())
    if not pa.types.is_string(values.type):
        raise InvalidInput("properties", _PROPERTIES_COLUMN, str(of))
    return values


def _check_properties(names: pa.Array, values: pa.Array, reserved: set[str]) -> None:
    _refuse_separators(names, "properties")
    _refuse_separators(values, "properties")
    taken = sorted((properties.SYSTEM_PROPERTIES | reserved) & set(pc.unique(names).to_pylist()))
    if taken or pc.any(pc.equal(names, "")).as_py():
        raise InvalidInput("properties", message_limits.PROPERTY_NAME, taken or "")
    if pc.any(pc.equal(values, "")).as_py():
        raise InvalidInput("properties", message_limits.PROPERTY_VALUE, "", remedy="null leaves a property out")


def _entries(kind: pa.DataType) -> pa.DataType:
    return pa.struct([("key", kind.key_type), ("value", kind.item_type)])
