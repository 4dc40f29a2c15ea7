"""Bodies to typed columns, in Spark's Python workers: JSON, msgpack and Arrow, by each message's content type.

A body that is no value of the schema (it does not parse, is no object, a field has a value that its column cannot
hold) gives nulls in all decoded columns and itself in `_corrupt`. A field that is missing is null, one that the schema
does not name is ignored.

JSON goes through Arrow's own parser, block by block. What that refuses is halved down to small blocks, and those are
decoded value by value: so one bad message costs its neighbours little, and both ways agree (tests compare them). A
block of which a body is not UTF-8 or nests deep is not given to Arrow's parser, which would take both.
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

from raymq.client.errors import InvalidInput
from raymq.spark_bridge.arrow_row import row_of_stream
from raymq.spark_bridge.arrow_rows import ArrowRows
from raymq.spark_bridge.convert import converter
from raymq.storage.records.property_columns import Int64s, gather, spans

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
ARROW: Final = "application/vnd.apache.arrow.stream"

#: What `format=` may say, and the content type it stands for.
FORMATS: Final = {"json": JSON, "msgpack": MSGPACK, "arrow": ARROW}

#: The column of bodies that cannot be decoded.
CORRUPT: Final = "_corrupt"

_ORDER: Final = (JSON, MSGPACK, ARROW)

#: Blocks of up to so many messages are decoded one by one if Arrow's parser refuses them.
_SMALL_BLOCK: Final = 64
#: What Arrow's parser takes for a number and JSON does not know. It may also be text in a string: then it is only slow.
_CONSTANT: Final = r"[:,\[]\s*[-+]?(NaN|Inf)"
#: How deep a body may nest for Arrow's parser: it has no limit, Python's has one of somewhat less than 1,000.
_DEEPEST: Final = 500
_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
#: Makes "{" of "[" and "}" of "]".
_CASE: Final = 0x20
_OPENING: Final = ord("{")
_CLOSING: Final = ord("}")
#: Python reads no integer of more digits, so that nobody can keep it busy with one.
_MOST_DIGITS: Final = 4_300
#: A field that is put into every JSON object to prove that object n came from body n.
_ROW: Final = "\ufdd0row"


class BodyDecoder:
    """Decodes bodies into the columns of one schema. Picklable; not for use by several threads."""

    def __init__(self, schema: pa.Schema, default: str) -> None:
        """`default` is the content type of messages that do not say one.

        Raises:
            InvalidInput: `schema` has a type that messages cannot hold.
        """
        self._type = pa.struct(list(schema))
        try:
            self._convert = converter(self._type)
        except TypeError as error:
            raise InvalidInput("schema", "types that messages can hold", str(error)) from None
        self._default = default
        self._arrow_rows = ArrowRows(self._type)
        self._direct = all(_is_plain(field.type) for field in schema) and _ROW not in schema.names
        #: In the order of _ORDER, and for all others.
        self._decoders = self._decode_json, self._decode_msgpack, self._decode_arrow, self._decode_unknown

    def __reduce__(self) -> tuple[Any, ...]:
        return BodyDecoder, (pa.schema(list(self._type)), self._default)

    @property
    def names(self) -> list[str]:
        """Of the columns that `decode` returns."""
        return [*(field.name for field in self._type), CORRUPT]

    def decode(self, bodies: pa.Array, content_types: pa.Array) -> list[pa.Array]:
        """The decoded columns and, last, `_corrupt`."""
        kinds = content_types.fill_null(self._default).dictionary_encode()
        # However many content types somebody makes up, there are four ways: each is gone once.
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
        taken, left = self._arrow_rows.decode(bodies)
        if not taken:
            return self._one_by_one(bodies, row_of_stream)
        parts, order = [each.values for each in taken], [each.rows for each in taken]
        if len(left):
            parts.append(self._one_by_one(bodies.take(pa.array(left)), row_of_stream))
            order.append(left)
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
        """All bodies by Arrow's parser, or None if it refuses one or takes them for other objects than they are."""
        if not pc.all(pc.starts_with(bodies, b"{")).as_py() or not _is_utf8(bodies):
            return None
        starts, ends, data = spans(bodies)
        if _nests_deep(starts, ends, data):
            return None
        # A line break ends an object here. A tab may stand where it may: between an object's parts alone.
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
        except Exception:  # noqa: BLE001 - Arrow knows a limit that the conversion does not
            return pa.array([_or_none(fitting, row) for row in rows], self._type)


def _format_of(content_type: str) -> int:
    """Its place in _ORDER; behind the last one for what we cannot decode."""
    media_type = content_type.partition(";")[0].strip().lower()
    return _ORDER.index(media_type) if media_type in _ORDER else len(_ORDER)


def _or_none(make: Callable[[Any], Any], value: Any) -> Any:
    """What `make` makes of a value, None if it cannot: whatever one message makes it raise, the others are to be read.

    That the memory is at its end is no message's fault.
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
    """Whether one of the JSON texts [start, end) nests deeper than _DEEPEST; they lie one behind the other."""
    long = np.flatnonzero(ends - starts > 2 * _DEEPEST)  # a shorter one has no room for as many brackets
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
    """What a JSON integer is: beyond _MOST_DIGITS an infinite double, as Arrow's parser takes it."""
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


def _from_msgpack(body: bytes) -> Any:
    return msgpack.unpackb(body, timestamp=3)


def _is_plain(kind: pa.DataType) -> bool:
    """Whether Arrow's JSON parser reads `kind` exactly as `converter` does."""
    if pa.types.is_struct(kind):
        return all(_is_plain(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _is_plain(kind.value_type)
    checks = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_float64, pa.types.is_string)
    return any(check(kind) for check in checks)
