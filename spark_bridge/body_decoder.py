"""Decode message bodies into typed columns: JSON, msgpack and Arrow, by each message's content type.

This runs in Spark's Python workers. A body that is not a value of the schema (it does not parse, is not an object, or a
field has a value that its column cannot hold) gives null in all decoded columns, and the body itself in `_corrupt`. A
missing field is null; a field that is not in the schema is ignored.

JSON goes through Arrow's own parser, block by block. A block that the parser refuses is divided down to small blocks,
and those are decoded value by value. So one bad message slows down only a few others, and both ways give the same
values (tests compare them). A block with a body that is not UTF-8 or is deeply nested does not go to Arrow's parser,
which would accept both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, NoReturn

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from raymq.client.arrow_body import decode_arrow_row
from raymq.client.errors import InvalidInput
from raymq.spark_bridge.arrow_batch_decoder import ArrowBatchDecoder
from raymq.spark_bridge.value_converter import make_converter
from raymq.storage.records.property_columns import Int64s, gather, spans

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
ARROW: Final = "application/vnd.apache.arrow.stream"

#: The values of `format=` and their content types.
FORMATS: Final = {"json": JSON, "msgpack": MSGPACK, "arrow": ARROW}

#: The column of bodies that cannot be decoded.
CORRUPT: Final = "_corrupt"

_ORDER: Final = (JSON, MSGPACK, ARROW)

#: Blocks of at most this many messages are decoded one by one if Arrow's parser refuses them.
_SMALL_BLOCK: Final = 64
#: Numbers that Arrow's parser accepts and JSON does not have. Text in a string may match too; then decoding is only
#: slower.
_CONSTANT: Final = r"[:,\[]\s*[-+]?(NaN|Inf)"
#: The deepest nesting for Arrow's parser, which has no limit itself; Python's limit is somewhat below 1,000.
_DEEPEST: Final = 500
_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
#: This bit turns "[" into "{" and "]" into "}".
_CASE: Final = 0x20
_OPENING: Final = ord("{")
_CLOSING: Final = ord("}")
#: The most digits of an integer that Python's int() accepts; the limit bounds the conversion time.
_MAX_DIGITS: Final = 4_300
#: A field that is added to every JSON object, to prove that object n came from body n.
_ROW: Final = "\ufdd0row"


class BodyDecoder:
    """A picklable decoder of bodies into the columns of one schema.

    For use by one thread.
    """

    def __init__(self, schema: pa.Schema, default: str) -> None:
        """Create a decoder; `default` is the content type of messages without one.

        Raises:
            InvalidInput: `schema` has a type that messages cannot hold.
        """
        self._type = pa.struct(list(schema))
        try:
            self._convert = make_converter(self._type)
        except TypeError as error:
            raise InvalidInput("schema", "types that messages can hold", str(error)) from None
        self._default = default
        self._arrow_rows = ArrowBatchDecoder(self._type)
        self._direct = all(_is_plain(field.type) for field in schema) and _ROW not in schema.names
        #: In the order of _ORDER; the last one is for all other content types.
        self._decoders = self._decode_json, self._decode_msgpack, self._decode_arrow, self._decode_unknown

    def __reduce__(self) -> tuple[Any, ...]:
        return BodyDecoder, (pa.schema(list(self._type)), self._default)

    @property
    def names(self) -> list[str]:
        """Return the names of the columns that `decode` returns."""
        return [*(field.name for field in self._type), CORRUPT]

    def decode(self, bodies: pa.Array, content_types: pa.Array) -> list[pa.Array]:
        """Return the decoded columns, followed by `_corrupt`."""
        kinds = content_types.fill_null(self._default).dictionary_encode()
        # Senders may use any number of content types, but there are four decoders: each runs once.
        ways = np.array([_format_of(kind) for kind in kinds.dictionary.to_pylist()], np.int8)
        formats = ways[np.asarray(kinds.indices)]
        parts, order = [], []
        for number, decode in enumerate(self._decoders):
            rows = np.flatnonzero(formats == number)
            if len(rows):
                chosen = bodies if len(rows) == len(bodies) else bodies.take(pa.array(rows))
                parts.append(decode(chosen))
                order.append(rows)
        if not parts:
            decoded = pa.array([], self._type)
        elif len(parts) == 1:
            decoded = parts[0]
        else:
            decoded = pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(order))))
        columns = [pc.struct_field(decoded, index) for index in range(self._type.num_fields)]
        return [*columns, pc.if_else(decoded.is_null(), bodies, pa.scalar(None, bodies.type))]

    def _decode_msgpack(self, bodies: pa.Array) -> pa.Array:
        return self._one_by_one(bodies, _from_msgpack)

    def _decode_arrow(self, bodies: pa.Array) -> pa.Array:
        taken, undecoded = self._arrow_rows.decode(bodies)
        if not taken:
            return self._one_by_one(bodies, decode_arrow_row)
        parts, order = [each.values for each in taken], [each.rows for each in taken]
        if len(undecoded):
            parts.append(self._one_by_one(bodies.take(pa.array(undecoded)), decode_arrow_row))
            order.append(undecoded)
        return pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(order))))

    def _decode_unknown(self, bodies: pa.Array) -> pa.Array:
        return pa.nulls(len(bodies), self._type)

    def _decode_json(self, bodies: pa.Array) -> pa.Array:
        if self._direct and len(bodies):
            found = self._parse_block(bodies)
            if found is not None:
                return found
            if len(bodies) > _SMALL_BLOCK:
                size = max(_SMALL_BLOCK, -(-len(bodies) // 8))
                pieces = [self._decode_json(bodies.slice(at, size)) for at in range(0, len(bodies), size)]
                return pa.concat_arrays(pieces)
        return self._one_by_one(bodies, _from_json)

    def _parse_block(self, bodies: pa.Array) -> pa.Array | None:
        """Decode all bodies with Arrow's parser.

        Return None if the parser refuses a body, or does not return exactly one object for each body.
        """
        if not pc.all(pc.starts_with(bodies, b"{")).as_py() or not _is_utf8(bodies):
            return None
        starts, ends, data = spans(bodies)
        if _nests_deep(starts, ends, data):
            return None
        # A line break ends an object in this block, so a tab replaces it, which JSON allows in the same places.
        lines = pc.replace_substring(gather(data, starts + 1, ends, pa.binary()), b"\n", b"\t")
        numbers = pa.array(np.arange(len(bodies))).cast(pa.string()).cast(pa.binary())
        head = b'{"' + _ROW.encode() + b'":'
        joined = pc.binary_join_element_wise(head, numbers, b",", lines, b"\n", b"")
        block = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(joined)], pa.int32()), joined), b"")[0]
        if pc.match_substring_regex(block, _CONSTANT).as_py():
            return None
        text = block.as_buffer()
        try:
            table = pj.read_json(
                pa.BufferReader(text),
                read_options=pj.ReadOptions(use_threads=False, block_size=text.size + 1),
                parse_options=pj.ParseOptions(
                    explicit_schema=pa.schema([*self._type, (_ROW, pa.int64())]), unexpected_field_behavior="ignore"
                ),
            )
        except pa.ArrowInvalid:
            return None
        if table.num_rows != len(bodies) or not np.array_equal(table[_ROW].to_numpy(), np.arange(len(bodies))):
            return None
        columns = [table.column(field.name).combine_chunks() for field in self._type]
        return pa.StructArray.from_arrays(columns, fields=list(self._type))

    def _one_by_one(self, bodies: pa.Array, parse: Any) -> pa.Array:
        def row_of(body: bytes) -> Any:
            value = parse(body)
            return self._convert(value) if isinstance(value, dict) else None

        def fitting(row: Any) -> Any:
            pa.array([row], self._type)
            return row

        rows = [_or_none(row_of, body) for body in bodies.to_pylist()]
        try:
            return pa.array(rows, self._type)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - Arrow has a limit that the conversion does not check
            return pa.array([_or_none(fitting, row) for row in rows], self._type)


def _format_of(content_type: str) -> int:
    """Return the index of a content type in _ORDER, or len(_ORDER) if unknown."""
    media_type = content_type.partition(";")[0].strip().lower()
    return _ORDER.index(media_type) if media_type in _ORDER else len(_ORDER)


def _or_none(make: Callable[[Any], Any], value: Any) -> Any:
    """Return `make(value)`, or None if it raises: one bad message must not fail the others.

    MemoryError is raised, because it is not caused by a particular message.
    """
    try:
        return make(value)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - parsers of three formats, and Arrow, raise all kinds of errors
        return None


def _is_utf8(bodies: pa.Array) -> bool:
    try:
        bodies.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _nests_deep(starts: Int64s, ends: Int64s, data: pa.Buffer) -> bool:
    """Return True if one of the adjacent JSON texts [start, end) nests deeper than _DEEPEST."""
    long = np.flatnonzero(ends - starts > 2 * _DEEPEST)  # A shorter text has no room for that many brackets.
    if not len(long):
        return False
    content = np.frombuffer(data, np.uint8)
    for at in long.tolist():
        text = content[starts[at] : ends[at]]
        if np.count_nonzero(text | _CASE == _OPENING) > _DEEPEST:
            bare = np.frombuffer(_STRINGS.sub(b"", text.tobytes()), np.uint8) | _CASE
            depths = np.cumsum((bare == _OPENING).astype(np.int32) - (bare == _CLOSING))
            if int(depths.max(initial=0)) > _DEEPEST:
                return True
    return False


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _from_json(body: bytes) -> Any:
    return json.loads(body, parse_constant=_refuse_constant, parse_int=_whole)


def _whole(digits: str) -> int | float:
    """Convert a JSON integer; beyond _MAX_DIGITS it is an infinite double, as in Arrow's parser."""
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


def _from_msgpack(body: bytes) -> Any:
    return msgpack.unpackb(body, timestamp=3)


def _is_plain(kind: pa.DataType) -> bool:
    """Return True if Arrow's JSON parser reads `kind` exactly as `make_converter` does."""
    if pa.types.is_struct(kind):
        return all(_is_plain(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _is_plain(kind.value_type)
    checks = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_float64, pa.types.is_string)
    return any(check(kind) for check in checks)
